package bundle

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The agent's unit restricts the agent, and creates no mount namespace: the runtime would
// not see the mounts of volumes.
//
// Shows: D1
func TestUnitFile_ConfinesTheAgent_WithoutAMountNamespace(t *testing.T) {
	for _, path := range []string{"../../packaging/nodectl.service", "../../packaging/kubelet.service.d/20-nodectl.conf"} {
		t.Run(filepath.Base(path), func(t *testing.T) { confines(t, path) })
	}
}

// confines fails if a unit does not restrict the agent.
func confines(t *testing.T, path string) {
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			set[name] = value
		}
	}
	for _, name := range []string{"CapabilityBoundingSet", "SystemCallFilter", "NoNewPrivileges", "UMask", "SystemCallArchitectures"} {
		if set[name] == "" {
			t.Errorf("%s is not set", name)
		}
	}
	for _, name := range []string{"CAP_SYS_MODULE", "CAP_SYS_BOOT", "CAP_SYS_RAWIO", "CAP_SYS_TIME", "CAP_SETPCAP", "CAP_MKNOD", "CAP_BPF"} {
		if slices.Contains(strings.Fields(set["CapabilityBoundingSet"]), name) {
			t.Errorf("the agent has %s", name)
		}
	}
	// By systemd.exec(5) each of these sets up a file system namespace.
	for _, name := range []string{
		"PrivateTmp", "PrivateDevices", "PrivateMounts", "PrivateUsers", "ProtectSystem", "ProtectHome", "ProtectKernelModules",
		"ProtectKernelTunables", "ProtectKernelLogs", "ProtectControlGroups", "ProtectProc", "ProcSubset", "ProtectHostname",
		"ReadOnlyPaths", "ReadWritePaths", "InaccessiblePaths", "ExecPaths", "NoExecPaths", "BindPaths", "BindReadOnlyPaths",
		"TemporaryFileSystem", "RootDirectory", "RootImage", "MountAPIVFS", "MountImages", "ExtensionImages", "MountFlags",
		"DynamicUser", "StateDirectory", "CacheDirectory", "LogsDirectory", "LoadCredential", "LoadCredentialEncrypted", "SetCredential",
	} {
		if _, ok := set[name]; ok {
			t.Errorf("%s gives the agent a mount namespace of its own", name)
		}
	}
}

// systemd starts containerd so that pods outlive it, without the restrictions of the
// agent's unit.
//
// Shows: D1
func TestUnitArguments_RuntimesUnit_KeepsPodsAndLimits(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://proxy:3128")
	t.Setenv("NOTIFY_SOCKET", "/run/agent")
	r := New(Config{RootDir: "/r", RunDir: "/run/x"})
	args := r.unitArguments("u", "/r/bundle/b", 65536)
	for _, want := range []string{
		"--unit=u", "--service-type=exec", "--collect", "--property=KillMode=process", "--property=Delegate=yes", "--property=TasksMax=infinity",
		"--property=LimitNOFILE=65536", "--property=StandardError=append:/r/runtime/containerd.log", "--setenv=HTTPS_PROXY=http://proxy:3128",
	} {
		if !slices.Contains(args, want) {
			t.Errorf("no %s in %q", want, args)
		}
	}
	if strings.Contains(strings.Join(args, " "), "NOTIFY_SOCKET") {
		t.Errorf("containerd would speak for the agent: %q", args)
	}
	program := slices.Index(args, "--")
	if got, want := args[program+1:], []string{"/r/bundle/b/containerd", "--config", "/run/x/config.toml", "--log-level", "warn"}; program < 0 || !slices.Equal(got, want) {
		t.Errorf("it runs %q, want %q", got, want)
	}
}

// Containers inherit the restrictions of the agent's children. If a confined agent cannot
// use systemd, it starts no runtime, rather than one whose containers lack rights.
//
// Shows: D1
func TestStartChild_AgentIsConfined_StartsNoRuntime(t *testing.T) {
	const free = "NoNewPrivs:\t0\nSeccomp:\t0\nCapBnd:\t000001ffffffffff\n"
	for name, c := range map[string]struct{ own, first, want string }{
		"free":                   {free, free, ""},
		"a kernel that is older": {"CapBnd:\t1\n", "CapBnd:\t1\n", ""},
		"a small container":      {"NoNewPrivs:\t0\nSeccomp:\t0\nCapBnd:\t00000000a80425fb\n", "CapBnd:\t00000000a80425fb\n", ""},
		"no new rights":          {strings.Replace(free, "NoNewPrivs:\t0", "NoNewPrivs:\t1", 1), free, "no_new_privs"},
		"filtered":               {strings.Replace(free, "Seccomp:\t0", "Seccomp:\t2", 1), free, "system call filter"},
		"bounded":                {strings.Replace(free, "01ff", "00ff", 1), free, "capability bounding set"},
		"the unit":               {"NoNewPrivs:\t1\nSeccomp:\t2\nCapBnd:\t1\n", free, "no_new_privs, system call filter, capability bounding set"},
	} {
		t.Run(name, func(t *testing.T) {
			proc := t.TempDir()
			for pid, text := range map[string]string{"self": c.own, "1": c.first} {
				if err := os.MkdirAll(filepath.Join(proc, pid), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(proc, pid, "status"), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := confinement(proc); got != c.want {
				t.Errorf("confinement %q, want %q", got, c.want)
			}
		})
	}
}
