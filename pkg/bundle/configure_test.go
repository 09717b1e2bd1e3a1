package bundle

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
)

const routeHead = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"

func TestMTUIsThatOfTheDefaultRoute(t *testing.T) {
	for name, c := range map[string]struct {
		route, route6 string
		want          int
	}{
		"one default":     {route: "eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0\n", want: 1400},
		"no default":      {route: "eth0 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n", want: 0},
		"lowest metric":   {route: "wlan0 00000000 01 0003 0 0 600 00000000 0 0 0\neth0 00000000 01 0003 0 0 100 00000000 0 0 0\n", want: 1400},
		"IPv6 only":       {route6: strings.Repeat("0", 32) + " 00 " + strings.Repeat("0", 32) + " 00 " + strings.Repeat("0", 32) + " 00000400 00000001 00000000 00000003 wlan0\n", want: 1280},
		"unknown device":  {route: "tun9 00000000 01 0003 0 0 0 00000000 0 0 0\n", want: 0},
		"nothing to read": {want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write := func(name, text string) {
				path := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			write("proc/net/route", routeHead+c.route)
			write("proc/net/ipv6_route", c.route6)
			write("sys/class/net/eth0/mtu", "1400\n")
			write("sys/class/net/wlan0/mtu", "1280\n")
			if got := mtu(filepath.Join(dir, "proc"), filepath.Join(dir, "sys")); got != c.want {
				t.Errorf("mtu %d, want %d", got, c.want)
			}
		})
	}
}

func TestCheckSaysWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"all right":        {Config{RootDir: "/var/lib/nodectl"}, ""},
		"relative root":    {Config{RootDir: "lib"}, "must be absolute"},
		"quote in root":    {Config{RootDir: "/it's"}, "without quotes"},
		"long run":         {Config{RootDir: "/x", RunDir: "/run/" + strings.Repeat("x", 40)}, "at most 40 bytes"},
		"long bridge":      {Config{RootDir: "/x", Bridge: "nodectl123456789"}, "at most 15 bytes"},
		"no subnet":        {Config{RootDir: "/x", Subnet: "10.88.0.0"}, "not an IPv4 network"},
		"IPv6 subnet":      {Config{RootDir: "/x", Subnet: "fd00::/64"}, "not an IPv4 network"},
		"tiny subnet":      {Config{RootDir: "/x", Subnet: "10.88.0.0/30"}, "at least 8 addresses"},
		"host in a subnet": {Config{RootDir: "/x", Subnet: "10.88.1.1/16"}, "did you mean 10.88.0.0/16?"},
	} {
		t.Run(name, func(t *testing.T) {
			err := New(c.cfg).check()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestRunDirIsShortAndItsOwn(t *testing.T) {
	long := New(Config{RootDir: "/" + strings.Repeat("very/long/", 20)})
	if dir := filepath.Join(long.run, "s"); len(dir) > 42 {
		t.Errorf("%s has %d bytes, containerd takes 42", dir, len(dir))
	}
	if a, b := New(Config{RootDir: "/a"}), New(Config{RootDir: "/b"}); a.run == b.run {
		t.Errorf("two roots share %s", a.run)
	}
	if a, b := New(Config{RootDir: "/a"}), New(Config{RootDir: "/a/"}); a.run != b.run {
		t.Errorf("one root has %s and %s", a.run, b.run)
	}
}

// Containers in user namespaces can go through the run directory, even if a previous agent
// made it. The mode of other users' directories does not change.
//
// Shows: C-1.42
func TestC_1_42_RunDirLetsThrough(t *testing.T) {
	for before, want := range map[os.FileMode]os.FileMode{0: 0o711, 0o700: 0o711, 0o750: 0o751, 0o711: 0o711, 0o755: 0o755} {
		r := New(Config{RootDir: t.TempDir(), RunDir: filepath.Join(t.TempDir(), "run")})
		if before != 0 {
			if err := os.Mkdir(r.run, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(r.run, before); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.configure("/nowhere", false); !os.IsNotExist(err) { // there is no bundle
			t.Fatal(err)
		}
		info, err := os.Stat(r.run)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%o: %v %v, want %o", before, info.Mode(), err, want)
		}
		if info, err := os.Stat(filepath.Join(r.root, "certs.d")); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("certs.d: %v %v, want 0700", info, err)
		}
	}
}

// TestContainerdConfig_Encoded_EqualsTheDocument compares the values, not the text, with a
// configuration that a person wrote. Order, quotes and layout may differ.
func TestContainerdConfig_Encoded_EqualsTheDocument(t *testing.T) {
	decode := func(text []byte) (doc map[string]any) {
		if err := toml.Unmarshal(text, &doc); err != nil {
			t.Fatalf("%v in:\n%s", err, text)
		}
		return doc
	}
	document, err := os.ReadFile("testdata/containerd.toml")
	if err != nil {
		t.Fatal(err)
	}
	text, err := containerdConfig{
		root: "/var/lib/nodectl/runtime", run: "/run/nodectl-runtime", bin: "/opt/bundle/rootfs",
		oomScore: -999, snapshotter: "overlayfs", pauseImage: "nodectl.local/pause:1", platform: "linux/amd64",
	}.encode()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(decode(document), decode(text)); diff != "" {
		t.Errorf("containerd is configured otherwise (-document +encoded):\n%s", diff)
	}
	// A further handler is the same runtime under another name. Kubernetes' node suite searches the
	// configuration for this text.
	text, err = containerdConfig{handlers: []string{"test-handler"}}.encode()
	if err != nil || !strings.Contains(string(text), "runtimes.test-handler") {
		t.Errorf("%v in:\n%s", err, text)
	}
	last := decode(text)
	for _, key := range []string{"plugins", "io.containerd.cri.v1.runtime", "containerd", "runtimes"} {
		last, _ = last[key].(map[string]any)
	}
	if diff := cmp.Diff(last["runc"], last["test-handler"]); last["runc"] == nil || diff != "" {
		t.Errorf("the handlers differ:\n%s", diff)
	}
	// A path may contain TOML's special characters.
	odd := "/var/\"lib\"\\x'y"
	text, err = containerdConfig{root: odd}.encode()
	if err != nil {
		t.Fatal(err)
	}
	if got := decode(text)["root"]; got != odd+"/root" {
		t.Errorf("root %q, want %q", got, odd+"/root")
	}
}

// TestSnapshotter_AgentsWereKilledInIt_NothingIsLeft: older agents gave the directory a random name.
func TestSnapshotter_AgentsWereKilledInIt_NothingIsLeft(t *testing.T) {
	dir := t.TempDir()
	for _, left := range []string{".overlay/upper", ".overlay-123/upper"} {
		if err := os.MkdirAll(filepath.Join(dir, left), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if name, err := snapshotter(dir); name == "" || err != nil {
		t.Errorf("%q, %v", name, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}
