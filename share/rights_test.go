package share

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
)

// TestRightsOfServices: each service of a share refuses a peer that lacks the one right that it
// asks for, and lets it in with that right.
func TestRightsOfServices(t *testing.T) {
	ctx := testCtx(t)
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "x"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	services := []struct {
		name string
		need identity.Rights
		body []byte
	}{
		{listingService, identity.List, nil},
		{leftOutService, identity.List, nil},
		{linksService, identity.List, nil},
		{dirsService, identity.List, (&dirsRequest{op: opDirsList}).append(nil)},
		{dirsService, identity.Write, (&dirsRequest{op: opDirsMake, prefixOrName: "d"}).append(nil)},
		{statService, identity.Read, nil},
		{wholeService, identity.Read, nil},
		{readService, identity.Read, (&readRequest{op: opReadBegin, id: 1, text: "x"}).append(nil)},
		{smallService, identity.Write, nil},
		{removeService, identity.Write, nil},
		{uploadService, identity.Write, (&beginRequest{claim: claim{name: "y", size: 1}}).append(nil)},
	}
	for _, lacks := range []identity.Rights{identity.List, identity.Read, identity.Write} {
		n := testNode(t, transfer.Options{Name: "strict", Listen: []string{"tcp://127.0.0.1:0"},
			Anonymous: identity.All &^ lacks})
		s, err := Serve(ctx, n, Options{Root: root, Writable: true, OnAccess: func(Access) {}})
		if err != nil {
			t.Fatal(err)
		}
		p, err := testNode(t, transfer.Options{Name: "other"}).Dial(ctx, n.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range services {
			if _, err := p.Call(ctx, x.name, x.body); errors.Is(err, control.NotPermitted) != (x.need == lacks) {
				t.Errorf("%s %x without the right to %v: %v", x.name, x.body, lacks, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
