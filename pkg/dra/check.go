package dra

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Limits of claims and of answers about them.
const (
	maxName    = 63      // bytes of a driver's name, as in the API
	maxDevices = 256     // of a claim at one driver
	maxText    = 256     // bytes of a name in an answer
	maxRecord  = 1 << 19 // bytes of a claim's file
)

// checkClaim returns an error for a claim that the pod must not use, or that is not allocated. The
// texts are the kubelet's, as far as it checks the same.
func checkClaim(p *v1.Pod, name string, owned bool, claim *resourcev1.ResourceClaim) error {
	if claim == nil {
		return fmt.Errorf("fetch ResourceClaim %s: resourceclaims.resource.k8s.io %q not found", name, name)
	}
	if claim.Name != name || claim.Namespace != p.Namespace {
		return fmt.Errorf("ResourceClaim %s/%s is not in the same namespace as Pod %s/%s", claim.Namespace, claim.Name, p.Namespace, p.Name)
	}
	if err := checkUID(string(claim.UID)); err != nil {
		return fmt.Errorf("ResourceClaim %s: %w", name, err)
	}
	if owned && !metav1.IsControlledBy(claim, p) {
		return fmt.Errorf("ResourceClaim %s/%s was not created for Pod %s/%s (Pod is not owner)", claim.Namespace, claim.Name, p.Namespace, p.Name)
	}
	reserved := func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == p.UID }
	if !slices.ContainsFunc(claim.Status.ReservedFor, reserved) {
		return fmt.Errorf("pod %s (%s) is not allowed to use ResourceClaim %s (%s)", p.Name, p.UID, name, claim.UID)
	}
	if claim.Status.Allocation == nil {
		return fmt.Errorf("ResourceClaim %s: not allocated", name)
	}
	for _, driver := range driversOf(claim) {
		if err := checkDriver(driver); err != nil {
			return fmt.Errorf("ResourceClaim %s: %w", name, err)
		}
	}
	return nil
}

// driversOf returns the drivers of a claim's allocation, sorted.
func driversOf(claim *resourcev1.ResourceClaim) []string {
	var all []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		all = append(all, r.Driver)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// sumOf returns a checksum of the devices of a claim's allocation.
func sumOf(claim *resourcev1.ResourceClaim) (string, error) {
	type device struct{ Driver, Pool, Device, Request, Share string }
	var all []device
	for _, r := range claim.Status.Allocation.Devices.Results {
		d := device{r.Driver, r.Pool, r.Device, r.Request, ""}
		if r.ShareID != nil {
			d.Share = string(*r.ShareID)
		}
		all = append(all, d)
	}
	text, err := json.Marshal(all)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(text)), nil
}

// checkDriver returns an error for a name that cannot be a driver's.
func checkDriver(name string) error {
	if len(name) > maxName || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Errorf("%.80q is not the name of a DRA driver", name)
	}
	return nil
}

// plainUID is the form of a UID that becomes the name of a file.
var plainUID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,127}$`)

func checkUID(uid string) error {
	if !plainUID.MatchString(uid) {
		return fmt.Errorf("%.80q is not a UID", uid)
	}
	return nil
}

// devicesOf returns the devices of a driver's answer about a claim, or an error if the answer is
// invalid.
func devicesOf(driver string, list []*drapb.Device) ([]pod.ClaimDevice, error) {
	if len(list) > maxDevices {
		return nil, fmt.Errorf("%d devices are listed, more than %d", len(list), maxDevices)
	}
	var all []pod.ClaimDevice
	for _, d := range list {
		texts := append([]string{d.GetPoolName(), d.GetDeviceName(), d.GetShareId()}, d.GetRequestNames()...)
		if len(d.GetCdiDeviceIds()) > maxDevices || len(d.GetRequestNames()) > maxDevices {
			return nil, fmt.Errorf("a device has %d CDI devices and %d requests, more than %d", len(d.GetCdiDeviceIds()), len(d.GetRequestNames()), maxDevices)
		}
		for _, text := range texts {
			if err := checkText(text); err != nil {
				return nil, err
			}
		}
		for _, name := range d.GetCdiDeviceIds() {
			if !pod.IsCDIDevice(name) {
				return nil, fmt.Errorf("%.80q is not a CDI device, such as vendor.com/class=name", name)
			}
		}
		all = append(all, pod.ClaimDevice{
			Driver: driver, Pool: d.GetPoolName(), Device: d.GetDeviceName(), ShareID: d.GetShareId(), Requests: d.GetRequestNames(), CDI: d.GetCdiDeviceIds(),
		})
	}
	return all, nil
}

// checkText returns an error for a text that cannot be the name of a pool, a device or a request.
func checkText(text string) error {
	if len(text) > maxText || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Errorf("%.80q is not the name of a pool, a device or a request", text)
	}
	return nil
}

// serviceOf returns the gRPC service by which a driver is called: the first of its list that this
// node knows. The texts are the kubelet's.
func serviceOf(services []string) (string, error) {
	if len(services) == 0 {
		return "", errors.New("empty list of supported gRPC services (aka supported versions)")
	}
	for _, s := range services {
		if slices.Contains(known, s) {
			return s, nil
		}
	}
	if len(services) > len(known)+2 {
		services = services[:len(known)+2]
	}
	return "", fmt.Errorf("none of services supported by the plugin (%.80q) are supported by the kubelet (%q)", services, known)
}

// requested returns the devices of a claim that a container gets by the names of requests. The name ""
// stands for all.
func requested(devices []pod.ClaimDevice, requests []string) []pod.ClaimDevice {
	if slices.Contains(requests, "") {
		return devices
	}
	var all []pod.ClaimDevice
	for _, d := range devices {
		if len(d.Requests) == 0 || slices.ContainsFunc(requests, func(r string) bool { return slices.Contains(d.Requests, r) }) {
			all = append(all, d)
		}
	}
	return all
}
