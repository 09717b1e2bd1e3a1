package cmd

import (
	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/ui"
)

func (p *program) getDevicesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "devices",
		Aliases: []string{"device"},
		Short:   "Show the devices of device plugins",
		Long: `Show the extended resources that device plugins serve, or served since the agent
started, with their devices and the containers that have them. HEALTH:
  Healthy    the plugin lists it as healthy
  Unhealthy  the plugin lists it as unhealthy, or is not connected
  Unlisted   a container has it, and the plugin does not list it`,
		Args: noArgs,
		Example: `  nodectl get devices
  nodectl get devices -o wide`,
	}
	output := addOutput(cmd, "text", "wide", "json", "yaml", "name")
	endpoint := p.addEndpoint(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := endpoint.client()
		if err != nil {
			return err
		}
		d := ui.DeviceList{Document: ui.Document{APIVersion: ui.APIVersion, Kind: "DeviceResourceList"}}
		if err := c.Document(cmd.Context(), "/v1/devices", nil, &d); err != nil {
			return clientError(err)
		}
		switch output.value {
		case "text", "wide":
			if len(d.Items) == 0 {
				p.say(p.err.Notice("no device plugin has registered on this node"))
			}
			return p.out.print(p.out.Devices(d, output.value == "wide"))
		case "name":
			return p.out.print(ui.DeviceNames(d))
		}
		return p.document(output.value, d)
	}
	return cmd
}
