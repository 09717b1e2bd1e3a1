package node

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// identify fills in the IDs of the machine, from the same files as the kubelet. Containers and
// small systems lack some of them.
func identify(root string, f *Facts) {
	f.MachineID = firstOf(root, "etc/machine-id", "var/lib/dbus/machine-id")
	f.SystemUUID = firstOf(root, "sys/class/dmi/id/product_uuid", "proc/device-tree/system-id", "proc/device-tree/vm,uuid", "etc/machine-id")
	f.BootID = firstOf(root, "proc/sys/kernel/random/boot_id")
	f.OSImage = osImage(root)
}

// firstOf returns the text of the first file that has one.
func firstOf(root string, names ...string) string {
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(root, name))
		if text := strings.Trim(string(data), "\x00 \t\r\n"); err == nil && text != "" {
			return text
		}
	}
	return ""
}

// osImage is the system's name for people.
func osImage(root string) string {
	for _, name := range []string{"etc/os-release", "usr/lib/os-release"} {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
			if text, ok := strings.CutPrefix(lines.Text(), "PRETTY_NAME="); ok {
				if plain, err := strconv.Unquote(text); err == nil {
					return plain
				}
				return strings.Trim(text, "'")
			}
		}
		return "Linux"
	}
	return "Unknown"
}
