package share

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
)

// counts are the samples of a share's families, by name and labels.
func counts(t *testing.T, s *Server) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, f := range s.Families() {
		if err := f.Check(); err != nil {
			t.Error(err)
		}
		for _, x := range f.Samples {
			out[fmt.Sprint(f.Name, x.Values)] = x.Value
		}
	}
	return out
}

func expectCounts(t *testing.T, s *Server, want map[string]float64) {
	t.Helper()
	got := counts(t, s)
	for k, v := range want {
		if n, ok := got["penstock_share_"+k]; !ok || n != v {
			t.Errorf("%s is %v, expected %v", k, n, v)
		}
	}
}

// What peers without a certificate call themselves makes no series; reads that end early and what
// is left out are counted, too.
func TestFamilies(t *testing.T) {
	ctx, root, out := testCtx(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "x"), make([]byte, 1000))
	write(t, filepath.Join(root, "bad.npy"), make([]byte, 10))
	var b accessLog
	s := serve(t, Options{Root: root, Writable: true, Tensors: true, OnAccess: b.add})
	for _, name := range []string{"x", "bad.npy"} {
		if _, err := Fetch(ctx, s.c, name, FetchOptions{Output: filepath.Join(out, name)}); err != nil {
			t.Fatal(err)
		}
	}
	other, err := testNode(t, transfer.Options{Name: "other"}).Dial(ctx, s.node.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Upload(ctx, Over(other), filepath.Join(out, "x"), "y", UploadOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, r := range []readRequest{{op: opReadBegin, id: 1, good: 10, text: "x"}, {op: opReadEnd, id: 1, good: 70}} {
		if _, err := other.Call(ctx, readService, r.append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	idle(t, s.Server)
	expectCounts(t, s.Server, map[string]float64{
		"files_total[(no certificate) get completed]": 2, "files_total[(no certificate) get failed]": 1,
		"bytes_total[(no certificate) get]":           1070,
		"files_total[(no certificate) put completed]": 1, "bytes_total[(no certificate) put]": 1000, "files[]": 3,
		"left_out[]": 1})
	if n := len(counts(t, s.Server)); n != 14 { // for each kind, those without a certificate and the others
		t.Errorf("%d series: %v", n, counts(t, s.Server))
	}
}

// A peer with a certificate is counted by the name in it, whatever it calls itself.
func TestFamiliesByCertificate(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	ca, err := identity.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name string) *identity.Identity {
		id, err := ca.Issue(name, identity.IssueOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(id.Close)
		return id
	}
	write(t, filepath.Join(root, "x"), make([]byte, 1000))
	n := testNode(t, transfer.Options{Name: "server", Policy: identity.Everyone(identity.All),
		Listen: []string{"tcp://127.0.0.1:0"}, Identity: issue("server")})
	var b accessLog
	s, err := Serve(ctx, n, Options{Root: root, OnAccess: b.add})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p, err := testNode(t, transfer.Options{Name: "boss", Identity: issue("worker")}).Dial(ctx, n.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Fetch(ctx, Over(p), "x", FetchOptions{Output: filepath.Join(t.TempDir(), "x")}); err != nil {
		t.Fatal(err)
	}
	idle(t, s)
	expectCounts(t, s, map[string]float64{"files_total[worker get completed]": 1, "bytes_total[worker get]": 1000,
		"files_total[(no certificate) get completed]": 0})
}

// However many names there are, the accounts are bounded and nothing is lost, and a name that has
// one keeps it.
func TestAccountsAreBounded(t *testing.T) {
	s := &Server{}
	for range 2 {
		for i := range 3 * maxAccounts {
			s.access.ended.enter(fmt.Sprint("peer", i), &Access{Size: 5, Good: 5, Whole: true})
		}
	}
	if n := len(s.access.ended[0]); n != maxAccounts+2 {
		t.Errorf("%d accounts", n)
	}
	expectCounts(t, s, map[string]float64{"files_total[peer0 get completed]": 2,
		"files_total[(others) get completed]": 4 * maxAccounts, "bytes_total[(others) get]": 20 * maxAccounts})
}

// Reasons are kept of some names only; all that are left out are counted.
func TestLeftOutIsCounted(t *testing.T) {
	s := serve(t, Options{Root: t.TempDir()})
	s.work.Lock()
	s.skips, s.skipped = 0, map[string]string{}
	for i := range maxSkipped + 5 {
		s.skip(fmt.Sprint(i), "why")
	}
	n := s.skips
	s.work.Unlock()
	if n != maxSkipped+5 {
		t.Errorf("%d names", n)
	}
	if err := s.Rescan(testCtx(t)); err != nil {
		t.Fatal(err)
	}
	expectCounts(t, s.Server, map[string]float64{"left_out[]": 0})
}
