package dns

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/sorted"
)

// Record is one record that a zone has because of a Service. Of Address, Alias, Host and Pointer, it
// has exactly one. Names are canonical.
type Record struct {
	Owner   string     `json:"owner"`
	Address netip.Addr `json:"address,omitzero"`  // of an A or AAAA record
	Alias   string     `json:"alias,omitempty"`   // the target of a CNAME record
	Host    string     `json:"host,omitempty"`    // the target of an SRV record
	Port    uint16     `json:"port,omitempty"`    // of an SRV record
	Pointer string     `json:"pointer,omitempty"` // the target of a PTR record
}

// compare compares two records, by their owners first.
func (r Record) compare(o Record) int {
	return cmp.Or(strings.Compare(r.Owner, o.Owner), r.Address.Compare(o.Address), strings.Compare(r.Alias, o.Alias),
		strings.Compare(r.Host, o.Host), cmp.Compare(r.Port, o.Port), strings.Compare(r.Pointer, o.Pointer))
}

// isValid reports whether a zone of a canonical domain may have a record because of a Service.
func (r Record) isValid(domain string) bool {
	kinds := 0
	if r.Address.IsValid() {
		kinds++
	}
	for _, to := range []string{r.Alias, r.Host, r.Pointer} {
		if to == "" {
			continue
		}
		if !isName(to) {
			return false
		}
		kinds++
	}
	own := strings.HasSuffix(r.Owner, ".svc."+domain)
	if r.Pointer != "" {
		own = isReverse(r.Owner)
	}
	return kinds == 1 && own && isName(r.Owner)
}

// Change is the difference between two zones of one domain. A record that changes is in both lists.
type Change struct {
	Remove []Record `json:"remove,omitempty"` // only the first zone has them
	Add    []Record `json:"add,omitempty"`    // only the second zone has them
}

// Len returns the number of records in the change.
func (c Change) Len() int { return len(c.Remove) + len(c.Add) }

// Difference returns the change from the zone of one list of Services to the zone of another one.
// Sort has sorted both lists. Difference computes only the records of Services whose pointers are
// not in both lists.
func Difference(domain string, before, after []*Service) Change {
	domain = canonical(domain)
	gone, came := sorted.Changed(before, after, compareNames)
	had, has := recordsOf(gone, domain), recordsOf(came, domain)
	return Change{Remove: without(had, has), Add: without(has, had)}
}

func recordsOf(services []*Service, domain string) (all []Record) {
	for _, s := range services {
		all = append(all, s.records(domain)...)
	}
	return all
}

// without returns the records of one list that another one lacks.
func without(all, others []Record) (rest []Record) {
	known := make(map[Record]bool, len(others))
	for _, r := range others {
		known[r] = true
	}
	for _, r := range all {
		if !known[r] {
			rest = append(rest, r)
		}
	}
	return rest
}

// Apply returns the zone that a change makes from z, with another serial number. It fails if z is not
// the first zone of the change: if z lacks a record to remove, or has one to add. z itself never
// changes.
func (z *Zone) Apply(c Change, serial uint32) (*Zone, error) {
	next := *z
	next.config.Serial, next.nodes = serial, maps.Clone(z.nodes)
	next.authority = slices.Clip(next.newSOA(next.domain))
	e := edit{Zone: &next, before: z.nodes}
	for _, r := range c.Remove {
		if !r.isValid(z.domain) || !e.remove(r) {
			return nil, fmt.Errorf("remove DNS record %+v: it is invalid, or the zone does not have it", r)
		}
	}
	for _, r := range c.Add {
		if !r.isValid(z.domain) || !e.add(r) {
			return nil, fmt.Errorf("add DNS record %+v: it is invalid, or the zone has it", r)
		}
	}
	return &next, nil
}

// edit makes a zone. It does not change the nodes of the zone before.
type edit struct {
	*Zone
	before map[string]*node // nil: there is no zone before
}

// node returns the node of a name, for changes. It adds the node, and the nodes of the names above
// it.
func (e *edit) node(name string) *node {
	at := e.nodes[name]
	switch at {
	case nil:
		at = &node{}
		e.nodes[name] = at
		if above, ok := e.above(name); ok {
			e.node(above).below++
		}
	case e.before[name]:
		own := *at
		own.addresses, own.targets, own.pointers = slices.Clone(at.addresses), slices.Clone(at.targets), slices.Clone(at.pointers)
		at = &own
		e.nodes[name] = at
	}
	return at
}

// above returns the name above a name, if a zone of this server has it.
func (z *Zone) above(name string) (above string, ok bool) {
	above = parent(name)
	return above, above != "" && (isBelow(above, z.domain) || isReverse(above))
}

// fix returns the node of a name that exists without a Service. For an invalid name it returns a
// node that no question finds.
func (e *edit) fix(name string) *node {
	if !isName(name) {
		return &node{}
	}
	at := e.node(name)
	at.fixed = true
	return at
}

// add adds a record, and reports whether the zone did not have it.
func (e *edit) add(r Record) bool { return e.node(r.Owner).set(r, true) }

// remove removes a record, and reports whether the zone had it. It removes the names that then have
// neither records nor names below them.
func (e *edit) remove(r Record) bool {
	if e.nodes[r.Owner] == nil {
		return false
	}
	removed := e.node(r.Owner).set(r, false)
	for name := r.Owner; e.nodes[name].isEmpty(); {
		delete(e.nodes, name)
		above, ok := e.above(name)
		if !ok {
			break
		}
		e.node(above).below--
		name = above
	}
	return removed
}

// set adds a record of a node, or removes it, and reports whether that is a change.
func (n *node) set(r Record, has bool) (changed bool) {
	switch {
	case r.Address.IsValid():
		n.addresses, changed = set(n.addresses, r.Address, has, netip.Addr.Compare)
	case r.Host != "":
		n.targets, changed = set(n.targets, target{r.Host, r.Port}, has, compareTargets)
	case r.Pointer != "":
		n.pointers, changed = set(n.pointers, r.Pointer, has, strings.Compare)
	case has && n.alias == "":
		n.alias, changed = r.Alias, true
	case !has && n.alias == r.Alias:
		n.alias, changed = "", true
	}
	return changed
}

// isEmpty reports whether the name of a node exists no longer.
func (n *node) isEmpty() bool {
	return !n.fixed && n.below == 0 && len(n.addresses) == 0 && n.alias == "" && len(n.targets) == 0 && len(n.pointers) == 0
}

func compareTargets(a, b target) int {
	return cmp.Or(strings.Compare(a.name, b.name), cmp.Compare(a.port, b.port))
}

// set returns a sorted list with an element, or without it, and whether that is a change. A list
// without elements is nil.
func set[E any](list []E, e E, has bool, compare func(a, b E) int) (result []E, changed bool) {
	i, had := slices.BinarySearchFunc(list, e, compare)
	switch {
	case has == had:
		return list, false
	case has:
		return slices.Insert(list, i, e), true
	case len(list) == 1:
		return nil, true
	}
	return slices.Delete(list, i, i+1), true
}
