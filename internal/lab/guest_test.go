package main

import (
	"strings"
	"testing"
)

func TestGuestListsProfiles(t *testing.T) {
	out, ok := lab(t, "guest")
	if !ok || !strings.Contains(out, "rdma") || !strings.Contains(out, "numa") {
		t.Errorf("ended well: %v\n%s", ok, out)
	}
	if out, ok := lab(t, "guest", "-profile", "nonsense"); ok || !strings.Contains(out, `no profile "nonsense"`) {
		t.Errorf("ended well: %v\n%s", ok, out)
	}
	if out, ok := lab(t, "guest", "-profile", "net"); ok || !strings.Contains(out, "expected a command") {
		t.Errorf("ended well: %v\n%s", ok, out)
	}
}

func TestNetworkRefusesNonsense(t *testing.T) {
	for _, args := range [][]string{{"netns"}, {"netns", "-hosts", "x", "--", "true"},
		{"netns", "-hosts", "1", "--", "true"}} {
		if out, ok := lab(t, args...); ok {
			t.Errorf("%q ended well:\n%s", args, out)
		}
	}
}
