package cri_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// refused reports whether err is a final StartError of that reason with text in it.
func refused(err error, reason, text string) bool {
	var se *pod.StartError
	return errors.As(err, &se) && se.Reason == reason && se.Final && strings.Contains(se.Err.Error(), text)
}

// CVE-2019-11245: the image's user counts at the first start and at the next, whether it
// was pulled or present before.
//
// Shows: D1
func TestCVE_2019_11245_ImageUserAtEveryStart(t *testing.T) {
	for _, pulled := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			rt := critest.New()
			r := rt.CRI(cri.Config{Node: "n1"})
			rt.SetImageUser("app:1", ptr.To(int64(65532)), "")
			want := wanted("web", "app:1")
			pull := func() {
				if !pulled {
					return
				}
				if _, err := r.FetchImage(t.Context(), want, "app:1", "", ""); err != nil {
					t.Fatal(err)
				}
			}
			pull()
			l := start(t, r, want, 0)
			var seen []*runtimeapi.ContainerConfig
			for attempt := range uint32(3) {
				if attempt > 0 {
					rt.Exit(want.Key, "c0", 1)
					pull()
					if err := r.StartContainer(t.Context(), create(t, r, want, l.sandbox, "c0", attempt)); err != nil {
						t.Fatal(err)
					}
				}
				c := rt.ContainerConfig(want.Key, "c0")
				if got := c.GetLinux().GetSecurityContext().GetRunAsUser(); got == nil || got.Value != 65532 {
					t.Errorf("pulled %t, attempt %d: runs as %v", pulled, attempt, got)
				}
				c = proto.CloneOf(c)
				c.Metadata.Attempt = 0
				delete(c.Annotations, pod.AnnotationRestartCount)
				seen = append(seen, c)
			}
			for _, c := range seen[1:] {
				if diff := cmp.Diff(seen[0], c, protocmp.Transform()); diff != "" {
					t.Errorf("pulled %t (-first +again):\n%s", pulled, diff)
				}
			}
		})
	}
}

// Shows: C-1.22.15
func TestC_1_22_15_NonRootIsCheckedBeforeCreate(t *testing.T) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	want := wanted("web", "root:1", "named:1", "well:1")
	want.Pod.Spec.SecurityContext = &v1.PodSecurityContext{RunAsNonRoot: ptr.To(true)}
	rt.SetImageUser("named:1", nil, "app")
	rt.SetImageUser("well:1", ptr.To(int64(7)), "")
	box, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1})
	if err != nil {
		t.Fatal(err)
	}
	for c, text := range map[string]string{"c0": "container has runAsNonRoot and image will run as root", "c1": "image has non-numeric user (app)"} {
		_, err := r.CreateContainer(t.Context(), pod.CreateRequest{Want: want, Container: c, Sandbox: &pod.Sandbox{ID: box}})
		if !refused(err, "CreateContainerConfigError", text) {
			t.Errorf("%s: %v", c, err)
		}
	}
	if n := rt.Calls()["CreateContainer"]; n != 0 {
		t.Errorf("the runtime was asked %d times", n)
	}
	create(t, r, want, box, "c2", 0)
}

// If an image was removed after its pull, its user is unknown and the container is not
// made.
func TestCreateContainer_ImageWasRemoved_Fails(t *testing.T) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	want := wanted("web", "app:1")
	box, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1})
	if err != nil {
		t.Fatal(err)
	}
	rt.SetImage("app:1", false)
	_, err = r.CreateContainer(t.Context(), pod.CreateRequest{Want: want, Container: "c0", Sandbox: &pod.Sandbox{ID: box}})
	var se *pod.StartError
	if !errors.As(err, &se) || se.Final || err.Error() != "CreateContainerError: image app:1 is not present any more" || rt.Calls()["CreateContainer"] != 0 {
		t.Errorf("%v", err)
	}
}

// Shows: C-1.22.12
func TestC_1_22_12_RuntimeClass(t *testing.T) {
	listed := []critest.Handler{{Name: ""}, {Name: "runc"}, {Name: "kata"}}
	for _, c := range []struct {
		name     string
		class    *string
		def      string
		handlers []critest.Handler
		want     string
		wrong    string
	}{
		{name: "none", handlers: listed},
		{name: "an empty one", class: ptr.To(""), handlers: listed},
		{name: "the node's default", def: "runc", handlers: listed, want: "runc"},
		{name: "a handler", class: ptr.To("kata"), def: "runc", handlers: listed, want: "kata"},
		{name: "a mapped one", class: ptr.To("safe"), handlers: listed, want: "kata"},
		{name: "mapped to the default", class: ptr.To("plain"), def: "kata", handlers: listed, want: ""},
		{name: "a handler that is mapped", class: ptr.To("runc"), handlers: listed, want: "kata"},
		{name: "an unknown one", class: ptr.To("gvisor"), handlers: listed, wrong: `runtimeClassName gvisor: the runtime has no handler "gvisor"; it has: kata, runc`},
		{name: "mapped to an unknown one", class: ptr.To("lost"), handlers: listed, wrong: `runtimeClassName lost: the runtime has no handler "nowhere"; it has: kata, runc`},
		{name: "a runtime that lists none", class: ptr.To("gvisor"), want: "gvisor"},
	} {
		rt := critest.New()
		rt.SetHandlers(c.handlers...)
		cfg := cri.Config{Node: "n1", RuntimeHandler: c.def, RuntimeClasses: map[string]string{"safe": "kata", "plain": "", "lost": "nowhere", "runc": "kata"}}
		if c.name == "the node's default" || c.name == "a handler" {
			delete(cfg.RuntimeClasses, "runc")
		}
		r := rt.CRI(cfg)
		want := wanted("web", "app:1")
		want.Pod.Spec.RuntimeClassName = c.class
		_, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1})
		if c.wrong != "" {
			if !refused(err, "FailedCreatePodSandBox", c.wrong) || rt.Calls()["RunPodSandbox"] != 0 {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if _, handler := rt.SandboxConfig(want.Key); err != nil || handler != c.want {
			t.Errorf("%s: handler %q, %v", c.name, handler, err)
		}
		if asked := rt.Calls()["Status"] > 0; asked != (c.class != nil && *c.class != "") {
			t.Errorf("%s: asked what the runtime can: %t", c.name, asked)
		}
	}
}

// A pod of an API server never runs with a guessed handler because the server did not
// answer. A static pod does not wait for a server.
//
// Shows: C-1.22.12
func TestC_1_22_12_ClassCannotBeRead_HandlerIsNotGuessed(t *testing.T) {
	for _, origin := range []string{"api", "file"} {
		rt := critest.New()
		rt.SetHandlers(critest.Handler{Name: ""}, critest.Handler{Name: "kata"}, critest.Handler{Name: "kata-qemu"})
		asked := 0
		r := rt.CRI(cri.Config{Node: "n1", RuntimeClasses: map[string]string{"safe": "kata"}, RuntimeClass: func(_ context.Context, name string) (string, bool, error) {
			if asked++; asked == 1 {
				return "", false, errors.New("HTTP 503: server error")
			}
			return "kata-qemu", name == "kata", nil
		}})
		run := func(name, class string) (string, error) {
			want := wanted(name, "app:1")
			want.Origin.Source, want.Pod.Spec.RuntimeClassName = origin, &class
			_, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1})
			_, handler := rt.SandboxConfig(want.Key)
			return handler, err
		}
		refused := func(what, why string, err error, sandboxes int) {
			t.Helper()
			var se *pod.StartError
			if !errors.As(err, &se) || se.Reason != "FailedCreatePodSandBox" || se.Final || se.Err.Error() != why || rt.Calls()["RunPodSandbox"] != sandboxes {
				t.Errorf("%s: %v, %d sandboxes", what, err, rt.Calls()["RunPodSandbox"])
			}
		}
		handler, err := run("web", "kata")
		if origin == "file" {
			if handler != "kata" || err != nil {
				t.Errorf("a static pod: handler %q, %v", handler, err)
			}
			if handler, err = run("direct", "kata-qemu"); handler != "kata-qemu" || err != nil {
				t.Errorf("a static pod that names a handler: %q, %v", handler, err)
			}
			continue
		}
		refused("a server that fails", "runtimeClassName kata: HTTP 503: server error", err, 0)
		if handler, err := run("web", "kata"); handler != "kata-qemu" || err != nil {
			t.Errorf("the next try: handler %q, %v", handler, err)
		}
		if handler, err := run("mapped", "safe"); handler != "kata" || err != nil || asked != 2 {
			t.Errorf("a class that the node knows: handler %q, %v, asked %d times", handler, err, asked)
		}
		_, err = run("direct", "kata-qemu")
		refused("no such class", "runtimeClassName kata-qemu: the API server has no such RuntimeClass", err, 2)
	}
}

// Shows: C-1.42.3
func TestC_1_42_3_UsersWhereTheRuntimeHasThem(t *testing.T) {
	const plain = "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
	for _, c := range []struct {
		name     string
		class    *string
		handlers []critest.Handler
		wrong    string
	}{
		{name: "yes", handlers: []critest.Handler{{Name: "", UserNamespaces: true}}},
		{name: "yes, of the class", class: ptr.To("kata"), handlers: []critest.Handler{{Name: ""}, {Name: "kata", UserNamespaces: true}}},
		{name: "no", handlers: []critest.Handler{{Name: ""}, {Name: "kata", UserNamespaces: true}}, wrong: plain},
		{name: "not of the class", class: ptr.To("kata"), handlers: []critest.Handler{{Name: "", UserNamespaces: true}, {Name: "kata"}}, wrong: "can't set `spec.hostUsers: false`, RuntimeClass handler \"kata\" does not support user namespaces"},
		{name: "no handlers", wrong: plain},
		{name: "no handlers, a class", class: ptr.To("kata"), wrong: "RuntimeClass handler \"kata\" does not support user namespaces"},
	} {
		rt := critest.New()
		rt.SetHandlers(c.handlers...)
		r := rt.CRI(cri.Config{Node: "n1", RootDir: t.TempDir()})
		want := wanted("web", "app:1")
		want.Pod.Spec.Containers[0].TerminationMessagePath = "/dev/termination-log"
		want.Pod.Spec.HostUsers, want.Pod.Spec.RuntimeClassName = ptr.To(false), c.class
		place := pod.Place{Users: &pod.Users{HostID: 65536, Length: 65536}}
		box, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1, Place: place})
		if c.wrong != "" {
			if !refused(err, "FailedCreatePodSandBox", c.wrong) || rt.Calls()["RunPodSandbox"] != 0 {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if _, err := r.CreateContainer(t.Context(), pod.CreateRequest{Want: want, Container: "c0", Sandbox: &pod.Sandbox{ID: box, Instance: 1}, Place: place}); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		ids := []*runtimeapi.IDMapping{{HostId: 65536, Length: 65536}}
		users := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
		config, _ := rt.SandboxConfig(want.Key)
		for _, got := range []*runtimeapi.NamespaceOption{
			config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
			rt.ContainerConfig(want.Key, "c0").GetLinux().GetSecurityContext().GetNamespaceOptions(),
		} {
			if diff := cmp.Diff(users, got.GetUsernsOptions(), protocmp.Transform()); diff != "" {
				t.Errorf("%s: %s", c.name, diff)
			}
		}
		// The pod's root writes the message.
		m := rt.ContainerConfig(want.Key, "c0").GetMounts()
		if len(m) != 1 || cmp.Diff(ids, m[0].GetUidMappings(), protocmp.Transform()) != "" || cmp.Diff(ids, m[0].GetGidMappings(), protocmp.Transform()) != "" {
			t.Errorf("%s: mounts %v", c.name, m)
		}
	}
}

func TestStrictGroupsWhereTheRuntimeHasThem(t *testing.T) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	want := wanted("web", "app:1")
	want.Pod.Spec.SecurityContext = &v1.PodSecurityContext{SupplementalGroupsPolicy: ptr.To(v1.SupplementalGroupsPolicyStrict)}
	run := func() error {
		_, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1})
		return err
	}
	if err := run(); !refused(err, "FailedCreatePodSandBox", "supplementalGroupsPolicy Strict is not supported by the runtime") {
		t.Errorf("%v", err)
	}
	lift := rt.Fault(critest.Fault{Method: "Status", Err: status.Error(codes.Internal, "some words")})
	var se *pod.StartError
	if err := run(); !errors.As(err, &se) || se.Final {
		t.Errorf("a runtime that cannot say: %v", err)
	}
	lift()
	lift = rt.Fault(critest.Fault{Method: "Status", Err: status.Error(codes.Unavailable, "gone")})
	if err := run(); !errors.Is(err, cri.ErrUnavailable) || errors.As(err, &se) {
		t.Errorf("a runtime that is away: %v", err)
	}
	lift()
	rt.SetGroupsPolicy(true) // another version of the runtime, after an unnoticed restart
	if err := run(); err != nil {
		t.Error(err)
	}
}

// The reported features are those of the present runtime.
//
// Shows: F21
func TestF21_FeaturesAreThoseOfTheRuntimeThatAnswers(t *testing.T) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	says := func(what, handler string, rro, users bool) {
		t.Helper()
		if r.RecursiveReadOnly(handler) != rro || r.UserNamespaces(handler) != users {
			t.Errorf("%s: %q: %t, %t", what, handler, r.RecursiveReadOnly(handler), r.UserNamespaces(handler))
		}
	}
	rt.SetHandlers(critest.Handler{Name: "", RecursiveReadOnly: true}, critest.Handler{Name: "kata", UserNamespaces: true})
	says("before it was asked", "", false, false)
	if _, err := r.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	says("default", "", true, false)
	says("kata", "kata", false, true)
	says("unknown", "runc", false, false)
	rt.Crash()
	if _, err := r.Ready(t.Context()); err == nil {
		t.Fatal("it answers though it is down")
	}
	says("away", "", false, false)
	rt.SetHandlers(critest.Handler{Name: "", UserNamespaces: true})
	if err := rt.Restart(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	says("another", "", false, true)
	says("another", "kata", false, false)
	for class, want := range map[string]string{"": "", "kata": "kata"} {
		if got, known, err := r.Handler(t.Context(), &class); got != want || known != (class == "") || err != nil {
			t.Errorf("class %q: handler %q, %t, %v", class, got, known, err)
		}
	}
	if got, known, err := r.Handler(t.Context(), nil); got != "" || !known || err != nil {
		t.Errorf("no class: handler %q, %t, %v", got, known, err)
	}
}

func TestImageVolumesAreMountedByID(t *testing.T) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	want := wanted("web", "app:1")
	want.Pod.Annotations = map[string]string{"note": "kept"}
	box, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1})
	if err != nil {
		t.Fatal(err)
	}
	q := pod.CreateRequest{Want: want, Container: "c0", Sandbox: &pod.Sandbox{ID: box}, Mounts: []pod.Mount{
		{Image: "data", SubPath: "files", ContainerPath: "/data", ReadOnly: true},
		{Image: "missing:1", ContainerPath: "/more", ReadOnly: true},
	}}
	if _, err := r.CreateContainer(t.Context(), q); err == nil || err.Error() != "CreateContainerError: image missing:1 is not present any more" {
		t.Errorf("%v", err)
	}
	q.Mounts = q.Mounts[:1]
	if _, err := r.CreateContainer(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	img, err := rt.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "data:latest"}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]*runtimeapi.Mount{{
		ContainerPath: "/data", Readonly: true, ImageSubPath: "files",
		Image: &runtimeapi.ImageSpec{Image: img.GetImage().GetId(), UserSpecifiedImage: "data", Annotations: map[string]string{"note": "kept"}},
	}}, rt.ContainerConfig(want.Key, "c0").GetMounts(), protocmp.Transform()); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}

// An ephemeral container joins its target's processes, unless it sees them anyway.
func TestTargetsOfEphemeralContainers(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*v1.PodSpec)
		pid  runtimeapi.NamespaceMode
	}{
		{"each its own", func(*v1.PodSpec) {}, runtimeapi.NamespaceMode_TARGET},
		{"shared", func(s *v1.PodSpec) { s.ShareProcessNamespace = ptr.To(true) }, runtimeapi.NamespaceMode_POD},
		{"the node's", func(s *v1.PodSpec) { s.HostPID = true }, runtimeapi.NamespaceMode_NODE},
	} {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		want := everyKind()
		c.set(&want.Pod.Spec)
		l := start(t, r, want, 0)
		create(t, r, want, l.sandbox, "debug", 0)
		ns := rt.ContainerConfig(want.Key, "debug").GetLinux().GetSecurityContext().GetNamespaceOptions()
		if ns.GetPid() != c.pid || (ns.GetTargetId() == l.containers["c0"]) != (c.pid == runtimeapi.NamespaceMode_TARGET) {
			t.Errorf("%s: %v", c.name, ns)
		}
	}
}

func TestSeccompFileOfThePod(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tight.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1", SeccompDir: dir + "/"})
	want := wanted("web", "app:1", "app:1")
	for i, file := range []string{"tight.json", "none.json"} {
		want.Pod.Spec.Containers[i].SecurityContext = &v1.SecurityContext{SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost, LocalhostProfile: &file}}
	}
	box, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1})
	if err != nil {
		t.Fatal(err)
	}
	create(t, r, want, box, "c0", 0)
	if got := rt.ContainerConfig(want.Key, "c0").GetLinux().GetSecurityContext().GetSeccomp(); got.GetLocalhostRef() != filepath.Join(dir, "tight.json") {
		t.Errorf("%v", got)
	}
	_, err = r.CreateContainer(t.Context(), pod.CreateRequest{Want: want, Container: "c1", Sandbox: &pod.Sandbox{ID: box}})
	if !refused(err, "CreateContainerConfigError", `seccompProfile: localhostProfile "none.json": there is no such file in `+dir) {
		t.Errorf("%v", err)
	}
}

func TestUserOfAContainer(t *testing.T) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	want := wanted("web", "app:1")
	want.Pod.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: ptr.To(int64(1000)), RunAsGroup: ptr.To(int64(2000)), FSGroup: ptr.To(int64(3000))}
	start(t, r, want, 0)
	look := func() *v1.LinuxContainerUser {
		a, err := r.Pod(t.Context(), want.Key)
		if err != nil {
			t.Fatal(err)
		}
		return a.Containers["c0"].User
	}
	if got := look(); got != nil {
		t.Errorf("a runtime that does not say: %+v", got)
	}
	rt.SetGroupsPolicy(true)
	if diff := cmp.Diff(&v1.LinuxContainerUser{UID: 1000, GID: 2000, SupplementalGroups: []int64{2000, 3000}}, look()); diff != "" {
		t.Error(diff)
	}
}

// The sandbox's process has the profile of its pause program, whatever profile the pod
// names, and the runtime's default where there is none or it cannot be written.
//
// Shows: C-1.22.12, D1
func TestRunSandbox_PauseProfile_IsTheSandboxsOwn(t *testing.T) {
	for name, c := range map[string]struct {
		profile func() (string, error)
		want    *runtimeapi.SecurityProfile
	}{
		"known":        {func() (string, error) { return "/p.json", nil }, &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/p.json"}},
		"no seccomp":   {func() (string, error) { return "", nil }, &runtimeapi.SecurityProfile{}},
		"disk is full": {func() (string, error) { return "", errors.New("no space left on device") }, &runtimeapi.SecurityProfile{}},
		"unknown":      {nil, &runtimeapi.SecurityProfile{}},
	} {
		t.Run(name, func(t *testing.T) {
			rt := critest.New()
			r := rt.CRI(cri.Config{Node: "n1", PauseProfile: c.profile})
			want := wanted("web", "app:1")
			want.Pod.Spec.SecurityContext = &v1.PodSecurityContext{SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeUnconfined}}
			if _, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1}); err != nil {
				t.Fatal(err)
			}
			config, _ := rt.SandboxConfig(want.Key)
			if got := config.GetLinux().GetSecurityContext().GetSeccomp(); got.GetProfileType() != c.want.ProfileType || got.GetLocalhostRef() != c.want.LocalhostRef {
				t.Errorf("seccomp of the sandbox: %v, want %v", got, c.want)
			}
		})
	}
}
