package prog

import (
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/packet/flow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var parse = netip.MustParseAddr

// parseRules parses rules and gives them IDs from 1.
func parseRules(t testing.TB, lines ...string) []flow.Rule {
	t.Helper()
	var rules []flow.Rule
	for i, line := range lines {
		r, err := flow.ParseRule(line)
		if err != nil {
			t.Fatal(err)
		}
		r.ID = uint32(i + 1)
		rules = append(rules, r)
	}
	return rules
}
