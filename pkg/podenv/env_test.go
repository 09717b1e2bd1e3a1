package podenv

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// envOf is the environment of a container in ns/p that is bound to objects.
func envOf(c v1.Container, from Sources, objects ...*pod.Object) (string, error) {
	c.Name = "c"
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", Labels: map[string]string{"app": "x"}},
		Spec:       v1.PodSpec{NodeName: "n1", ServiceAccountName: "sa", Containers: []v1.Container{c}},
	}
	return envOfPod(p, from, objects...)
}

func envOfPod(p *v1.Pod, from Sources, objects ...*pod.Object) (string, error) {
	q := pod.CreateRequest{
		Want: &pod.Spec{Key: pod.KeyOf(p), Pod: p, Data: podspec.NewData(objects)}, Container: "c",
		Sandbox: &pod.Sandbox{IPs: []string{"fd00::5", "10.88.0.5", "10.88.0.6"}},
	}
	env, err := Environment(q, from)
	var b strings.Builder
	for _, e := range env {
		b.WriteString(e.Name + "=" + e.Value + "\n")
	}
	return b.String(), err
}

func configMap(name string, data map[string]string) *pod.Object {
	return &pod.Object{
		Key: pod.Key{Namespace: "ns", Name: name}, Kind: pod.KindConfigMap,
		Object: &v1.ConfigMap{Data: data, BinaryData: map[string][]byte{"binary": []byte("x")}},
	}
}

func secret(name string, data map[string][]byte) *pod.Object {
	return &pod.Object{Key: pod.Key{Namespace: "ns", Name: name}, Kind: pod.KindSecret, Object: &v1.Secret{Data: data}}
}

func fieldOf(path string) *v1.EnvVarSource {
	return &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}
}

func mapKey(name, key string, optional ...bool) *v1.EnvVarSource {
	r := &v1.ConfigMapKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: name}, Key: key}
	if len(optional) > 0 {
		r.Optional = &optional[0]
	}
	return &v1.EnvVarSource{ConfigMapKeyRef: r}
}

func secretKey(name, key string, optional ...bool) *v1.EnvVarSource {
	r := &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: name}, Key: key}
	if len(optional) > 0 {
		r.Optional = &optional[0]
	}
	return &v1.EnvVarSource{SecretKeyRef: r}
}

func fileKey(path, key string, optional ...bool) *v1.EnvVarSource {
	r := &v1.FileKeySelector{VolumeName: "data", Path: path, Key: key}
	if len(optional) > 0 {
		r.Optional = &optional[0]
	}
	return &v1.EnvVarSource{FileKeyRef: r}
}

func fromMap(prefix, name string, optional ...bool) v1.EnvFromSource {
	r := &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: name}}
	if len(optional) > 0 {
		r.Optional = &optional[0]
	}
	return v1.EnvFromSource{Prefix: prefix, ConfigMapRef: r}
}

func fromSecret(prefix, name string, optional ...bool) v1.EnvFromSource {
	r := &v1.SecretEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: name}}
	if len(optional) > 0 {
		r.Optional = &optional[0]
	}
	return v1.EnvFromSource{Prefix: prefix, SecretRef: r}
}

// Shows: C-1.38.1
func TestC_1_38_1_EnvironmentInOrder(t *testing.T) {
	got, err := envOf(v1.Container{Env: []v1.EnvVar{
		{Name: "B", Value: "$(A)"}, // A comes later: stays
		{Name: "A", Value: "1"},
		{Name: "C", Value: "$(A)-$(B)"},
		{Name: "A", Value: "$(A)2"}, // the same name again replaces
		{Name: "D", Value: "$$(A)"},
		{Name: "IP", ValueFrom: fieldOf("status.podIP")},
		{Name: "URL", Value: "http://$(IP)/"},
		{Name: "EMPTY"},
		{Name: "BOTH", Value: "value", ValueFrom: fieldOf("metadata.name")}, // no server lets it pass
	}}, Sources{})
	if want := "B=$(A)\nA=12\nC=1-$(A)\nD=$(A)\nIP=10.88.0.5\nURL=http://10.88.0.5/\nEMPTY=\nBOTH=value\n"; got != want || err != nil {
		t.Errorf("%v, got\n%swant\n%s", err, got, want)
	}
}

// Shows: C-1.38.1
func TestC_1_38_1_EnvFromBelowEnv(t *testing.T) {
	objects := []*pod.Object{
		configMap("m", map[string]string{"A": "m", "B": "m", "no-identifier.": "m", "$(B)": "$(B)"}),
		secret("s", map[string][]byte{"B": []byte("s"), "C": []byte("s\n")}),
	}
	got, err := envOf(v1.Container{
		EnvFrom: []v1.EnvFromSource{
			fromMap("", "m"), fromSecret("", "s"), fromMap("P_", "m"),
			fromMap("", "none", true), fromSecret("", "none", true), {},
		},
		Env: []v1.EnvVar{
			{Name: "C", Value: "$(A)$(B)$(P_B)"},
			{Name: "K", ValueFrom: mapKey("m", "A")},
			{Name: "A", ValueFrom: mapKey("m", "none", true)}, // nothing to put in its place
			{Name: "S", ValueFrom: secretKey("s", "C")},
			{Name: "O", ValueFrom: secretKey("none", "C", true)},
			{Name: "O", ValueFrom: secretKey("s", "D", true)},
			{Name: "O", ValueFrom: mapKey("none", "C", true)},
		},
	}, Sources{}, objects...)
	want := "$(B)=$(B)\nA=m\nB=s\nno-identifier.=m\nC=msm\nP_$(B)=$(B)\nP_A=m\nP_B=m\nP_no-identifier.=m\nK=m\nS=s\n\n"
	if got != want || err != nil {
		t.Errorf("%v, got\n%swant\n%s", err, got, want)
	}
}

// Shows: C-1.38.1
func TestC_1_38_1_ServicesWhereNoNameIsTaken(t *testing.T) {
	service := func(namespace, name, ip string, ports ...v1.ServicePort) *v1.Service {
		return &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			Spec:       v1.ServiceSpec{ClusterIP: ip, Ports: ports},
		}
	}
	services := []*v1.Service{
		service("default", "kubernetes", "10.0.0.1", v1.ServicePort{Name: "https", Port: 443, Protocol: "TCP"}),
		service("default", "other", "10.0.0.9", v1.ServicePort{Port: 1}),
		service("ns", "headless", "None", v1.ServicePort{Port: 1}),
		service("ns", "portless", "10.0.0.3"),
		service("ns", "dns-six", "fd00::a", v1.ServicePort{Port: 53, Protocol: "UDP"}, v1.ServicePort{Name: "dns-tcp", Port: 53}),
	}
	server := "KUBERNETES_PORT=tcp://10.0.0.1:443\n" +
		"KUBERNETES_PORT_443_TCP=tcp://10.0.0.1:443\nKUBERNETES_PORT_443_TCP_ADDR=10.0.0.1\n" +
		"KUBERNETES_PORT_443_TCP_PORT=443\nKUBERNETES_PORT_443_TCP_PROTO=tcp\n" +
		"KUBERNETES_SERVICE_HOST=10.0.0.1\nKUBERNETES_SERVICE_PORT=443\nKUBERNETES_SERVICE_PORT_HTTPS=443\n"
	user := "DNS_SIX_PORT=mine\nX=fd00::a\nY=mine\n"
	links := "DNS_SIX_PORT_53_TCP=tcp://[fd00::a]:53\nDNS_SIX_PORT_53_TCP_ADDR=fd00::a\n" +
		"DNS_SIX_PORT_53_TCP_PORT=53\nDNS_SIX_PORT_53_TCP_PROTO=tcp\n" +
		"DNS_SIX_PORT_53_UDP=udp://[fd00::a]:53\nDNS_SIX_PORT_53_UDP_ADDR=fd00::a\n" +
		"DNS_SIX_PORT_53_UDP_PORT=53\nDNS_SIX_PORT_53_UDP_PROTO=udp\n" +
		"DNS_SIX_SERVICE_HOST=fd00::a\nDNS_SIX_SERVICE_PORT=53\nDNS_SIX_SERVICE_PORT_DNS_TCP=53\n"
	c := v1.Container{Name: "c", Env: []v1.EnvVar{
		{Name: "DNS_SIX_PORT", Value: "mine"}, {Name: "X", Value: "$(DNS_SIX_SERVICE_HOST)"}, {Name: "Y", Value: "$(DNS_SIX_PORT)"},
	}}
	no := false
	for name, w := range map[string]struct {
		links *bool
		want  string
	}{
		"links":    {nil, user + links + server},
		"no links": {&no, strings.ReplaceAll(user, "fd00::a", "$(DNS_SIX_SERVICE_HOST)") + server},
	} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: v1.PodSpec{Containers: []v1.Container{c}, EnableServiceLinks: w.links}}
		if got, err := envOfPod(p, Sources{Services: services}); got != w.want || err != nil {
			t.Errorf("%s: %v, got\n%swant\n%s", name, err, got, w.want)
		}
	}
	own := []*v1.Service{service("ns", "kubernetes", "10.9.9.9", v1.ServicePort{Port: 80}), services[0]}
	if got, err := envOf(v1.Container{}, Sources{Services: own}); err != nil || !strings.Contains(got, "KUBERNETES_SERVICE_HOST=10.9.9.9\n") {
		t.Errorf("%v: a service of the namespace does not come before the API server's:\n%s", err, got)
	}
}

// Shows: C-1.38.3
func TestC_1_38_3_Fields(t *testing.T) {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-n1", Namespace: "ns", UID: "u", Labels: map[string]string{"app": "x"}},
		Spec:       v1.PodSpec{NodeName: "n1", ServiceAccountName: "sa"},
	}
	onHost := p.DeepCopy()
	onHost.Spec.HostNetwork = true
	four, six := []string{"192.0.2.7", "2001:db8::7"}, []string{"2001:db8::7", "192.0.2.7"}
	for _, c := range []struct {
		pod     *v1.Pod
		hostIPs []string
		path    string
		want    string
	}{
		{p, four, "metadata.name", "web-n1"},
		{p, four, "metadata.labels['app']", "x"},
		{p, four, "spec.nodeName", "n1"},
		{p, four, "spec.serviceAccountName", "sa"},
		{p, four, "status.podIP", "10.88.0.5"},
		{p, four, "status.podIPs", "10.88.0.5,fd00::5"},
		{p, six, "status.podIP", "fd00::5"},
		{p, six, "status.podIPs", "fd00::5,10.88.0.5"},
		{p, nil, "status.podIPs", "10.88.0.5,fd00::5"},
		{p, four, "status.hostIP", "192.0.2.7"},
		{onHost, four, "status.podIP", "192.0.2.7"},
		{onHost, four, "status.hostIPs", "192.0.2.7,2001:db8::7"},
		{onHost, six, "status.podIPs", "2001:db8::7,192.0.2.7"},
	} {
		p := c.pod.DeepCopy()
		p.Spec.Containers = []v1.Container{{Name: "c", Env: []v1.EnvVar{{Name: "X", ValueFrom: fieldOf(c.path)}}}}
		got, err := envOfPod(p, Sources{Node: pod.NodeFacts{HostIPs: c.hostIPs}})
		if err != nil || got != "X="+c.want+"\n" {
			t.Errorf("%s = %q, %v; want %q", c.path, got, err, c.want)
		}
	}
}

// Shows: C-1.38.4
func TestC_1_38_4_EnvFileKeys(t *testing.T) {
	from := Sources{File: func(volume, path string) ([]byte, error) {
		if volume+"/"+path != "data/dir/app.env" {
			return nil, errors.New("no such file")
		}
		return []byte("# made by init\nA='1 $(B)'\nEMPTY=''\n"), nil
	}}
	for _, c := range []struct {
		from *v1.EnvVarSource
		want string // or of the error
	}{
		{fileKey("dir/app.env", "A"), "X=1 $(B)\n"},
		{fileKey("dir/app.env", "B", true), ""},
		{fileKey("dir/app.env", "EMPTY", true), ""},
		{fileKey("dir/app.env", "B"), `environment variable key "B" not found in file "dir/app.env"`},
		{fileKey("dir/app.env", "EMPTY"), `environment variable key "EMPTY" not found in file "dir/app.env"`},
		{fileKey("other", "A", true), "couldn't parse env file: no such file"}, // as the kubelet
	} {
		got, err := envOf(v1.Container{Env: []v1.EnvVar{{Name: "X", ValueFrom: c.from}}}, from)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c.from.FileKeyRef, got, c.want)
		}
	}
}

// Shows: C-1.38.2
func TestC_1_38_2_EnvironmentRefusesWhatItCannotRead(t *testing.T) {
	const canary = "canary\xff"
	objects := []*pod.Object{
		configMap("m", map[string]string{"A": "1", "=": "x"}),
		secret("s", map[string][]byte{"A": []byte(canary), "NUL": []byte("canary\x00")}),
		secret("raw", map[string][]byte{"NUL": []byte("canary\x00")}),
	}
	env := func(from *v1.EnvVarSource) v1.Container {
		return v1.Container{Env: []v1.EnvVar{{Name: "X", ValueFrom: from}}}
	}
	for want, c := range map[string]v1.Container{
		`configmap "none" not found`:                              {EnvFrom: []v1.EnvFromSource{fromMap("", "none")}},
		`secret "none" not found`:                                 {EnvFrom: []v1.EnvFromSource{fromSecret("", "none", false)}},
		`configmap "gone" not found`:                              env(mapKey("gone", "A")),
		`secret "m" not found`:                                    env(secretKey("m", "A")), // another kind's name
		"couldn't find key B in ConfigMap ns/m":                   env(mapKey("m", "B")),
		"couldn't find key binary in ConfigMap ns/m":              env(mapKey("m", "binary")), // as the kubelet
		"couldn't find key B in Secret ns/s":                      env(secretKey("s", "B", false)),
		`the value of environment variable "X" is not UTF-8 text`: env(secretKey("s", "A")),
		`the value of environment variable "NUL" is not`:          {EnvFrom: []v1.EnvFromSource{fromSecret("", "raw")}},
		`"=" cannot be the name`:                                  {EnvFrom: []v1.EnvFromSource{fromMap("", "m")}},
		`field "spec.foo" is not supported`:                       env(fieldOf("spec.foo")),
		`field "metadata.labels['a b']" is not`:                   env(fieldOf("metadata.labels['a b']")),
		`field "status.hostIP": no address is k`:                  env(fieldOf("status.hostIP")),
		`cannot find the volume "data"`:                           env(fileKey("x", "X")),
		`valueFrom names no supported source`:                     env(&v1.EnvVarSource{}),
		`resource "limits.pods" is not supported`: env(&v1.EnvVarSource{
			ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.pods"},
		}),
	} {
		_, err := envOf(c, Sources{}, objects...)
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("got %v, want %s…", err, want)
		}
	}
	q := pod.CreateRequest{Want: &pod.Spec{Pod: &v1.Pod{}}, Container: "none"}
	if _, err := Environment(q, Sources{}); err == nil {
		t.Error("a container that is not there has an environment")
	}
}

// The tables' right-hand sides are the results of the kubelet's parser.
//
// Shows: C-1.38.4
func TestC_1_38_4_EnvFile(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"K='v'", "v"},
		{"\n \t\n# K='no'\n \tK='v'\n", "v"},
		{"K='v' # a comment", "v"},
		{"K='v'#a comment", "v"},
		{"K='v'  \t", "v"},
		{"K='v'\r\n", "v"},
		{"K='a\r\nb'\r\n", "a\nb"},
		{"K='a\n\n# b\n'", "a\n\n# b\n"},
		{"K='\"$(A) \\n'", `"$(A) \n`},
		{"K=''", ""},
		{"K= 'v'", ""}, // a shell assigns nothing
		{"J= 'v'\nK='w'", "w"},
		{"K='1'\nK='2'", "1"},
		{"K='v'\nwrong", "v"}, // not read that far
		{"KK='1'\nK='2'", "2"},
		{"export K='v'\nK='w'", "w"},
		{"é='x'\nK='v'", "v"},
		{"wrong\nK='v'", "line 1: no ="},
		{"='v'", "line 1: no name before the ="},
		{" \t='v'", "line 1: no name before the ="},
		{"\nK ='v'", "line 2: white space before the ="},
		{"K=v", "line 1: the value is not in single quotes"},
		{"K=", "line 1: the value is not in single quotes"},
		{"K=\"v\"", "line 1: the value is not in single quotes"},
		{"J='x'\nK='v", "line 2: the quote is not closed"},
		{"J='a\nb\nK='v'", "line 3: text after the closing quote"},
		{"K='v'w", "line 1: text after the closing quote"},
		{"K='it'\\''s'", "line 1: text after the closing quote"},
		{"K='" + strings.Repeat("x", 65536) + "'", "line 1: longer than 65536 bytes"},
	} {
		got, err := parseEnvFile([]byte(c.text), "K")
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%.60q: %.80q, want %q", c.text, got, c.want)
		}
	}
}

// A value in quotes is read back, whatever precedes it.
func FuzzEnvFile(f *testing.F) {
	f.Add("J='1'\n# x\n", "a\nb")
	f.Add("J= 1", "")
	f.Add("J='", "'")
	f.Fuzz(func(t *testing.T, before, value string) {
		got, err := parseEnvFile([]byte(before), "K")
		if err != nil && (got != "" || !strings.HasPrefix(err.Error(), "line ")) {
			t.Errorf("%q, %v", got, err)
		}
		whole := fmt.Sprintf("K='%s'", value)
		if strings.ContainsAny(value, "'\r") || len(value) > 1000 {
			return
		}
		if got, err = parseEnvFile([]byte(whole), "K"); got != value || err != nil {
			t.Errorf("%q: %q, %v", whole, got, err)
		}
	})
}

// An object that is known only by its sum, as a record keeps it, is not one that is
// missing: an optional variable is not left out for it.
//
// Shows: C-1.38.1
func TestC_1_38_1_UnknownIsNotMissing(t *testing.T) {
	t.Parallel()
	p := &v1.Pod{}
	p.Spec.Containers = []v1.Container{{Name: "c", EnvFrom: []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{
		LocalObjectReference: v1.LocalObjectReference{Name: "page"}, Optional: new(true)}}}}}
	spec := &pod.Spec{Key: pod.KeyOf(p), Pod: p, Data: &pod.Data{Sums: []pod.ObjectSum{{Kind: pod.KindConfigMap, Name: "page", Hash: "x"}}}}
	if _, err := Environment(pod.CreateRequest{Want: spec, Container: "c", Sandbox: &pod.Sandbox{}}, Sources{}); err == nil || !strings.Contains(err.Error(), `the content of configmap "page" is unknown`) {
		t.Errorf("%v", err)
	}
}

// An optional object that the source could not read is not one that is missing: the kubelet
// starts the container once it knows.
func TestEnvironment_OptionalObjectUnread_IsNotMissing(t *testing.T) {
	t.Parallel()
	p := &v1.Pod{}
	p.Spec.Containers = []v1.Container{{Name: "c", Env: []v1.EnvVar{{Name: "A", ValueFrom: secretKey("key", "k", true)}, {Name: "B", ValueFrom: mapKey("page", "k", true)}}}}
	for want, unread := range map[string][]pod.ObjectID{
		"":                                       nil,
		`secret "key" could not be read yet`:     {{Kind: pod.KindSecret, Name: "key"}},
		`configmap "page" could not be read yet`: {{Kind: pod.KindConfigMap, Name: "page"}},
	} {
		spec := &pod.Spec{Key: pod.KeyOf(p), Pod: p, Unread: unread}
		_, err := Environment(pod.CreateRequest{Want: spec, Container: "c", Sandbox: &pod.Sandbox{}}, Sources{})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", unread, err)
		}
	}
}
