package nft

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTable_Refusals_ConcernNewConnectionsAlone: each rule of the base chains begins with a comparison of
// the state of the connection.
func TestTable_Refusals_ConcernNewConnectionsAlone(t *testing.T) {
	t.Parallel()
	for _, v6 := range []bool{false, true} {
		tab := &table{message: &message{}, name: TableServices, family: familyOf(v6)}
		tab.base()
		found := map[string][]string{}
		replies(tab.b, func(r reply) {
			if r.kind != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE {
				return
			}
			chain, names := "", []string(nil)
			attributes(r.body[sizeofHeader:], func(kind uint16, data []byte) {
				switch kind {
				case unix.NFTA_RULE_CHAIN:
					chain = textOf(data)
				case unix.NFTA_RULE_EXPRESSIONS:
					attributes(data, func(_ uint16, one []byte) {
						attributes(one, func(kind uint16, data []byte) {
							if kind == unix.NFTA_EXPR_NAME {
								names = append(names, textOf(data))
							}
						})
					})
				}
			})
			found[chain] = append(found[chain], names...)
		})
		for _, chain := range []string{"filter-input", "filter-forward", "filter-output"} {
			want := []string{"ct", "bitwise", "cmp", "immediate"}
			if chain != "filter-output" { // which no packet of an endpoint passes
				want = slices.Concat(want, want)
			}
			if !slices.Equal(found[chain], want) {
				t.Errorf("IPv6 %t, %s: %q, want %q", v6, chain, found[chain], want)
			}
		}
	}
}
