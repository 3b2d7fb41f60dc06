package doctor

import (
	"bytes"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
)

// TestGuestRDMA looks at a real Soft-RoCE device. Its recording, which -v prints, is
// testdata/rxe.txt.
func TestGuestRDMA(t *testing.T) {
	if guest.Enter(t, guest.Spec{Profile: guest.Rdma}) {
		return
	}
	var b bytes.Buffer
	m, err := Record(t.Context(), &b)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", b.String())
	for _, secret := range []string{"10.8.0.1", "0a08:0001", "ff:fe"} {
		if strings.Contains(b.String(), secret) {
			t.Errorf("the recording has %q", secret)
		}
	}
	r := RunRDMA(m, Needs{}, []string{"rxe0"})
	want := map[string]Verdict{"rdma rxe0 port 1": OK, "rdma-gid rxe0 port 1": OK, "rdma-mtu rxe0 port 1": Warn,
		"rdma-counters rxe0 port 1": OK, "rdma-modules devices": OK,
		"rdma-modules connections": OK, "rdma-files /dev/infiniband/uverbs0": OK,
		"rdma-files /dev/infiniband/rdma_cm": OK, "rdma-namespaces ": OK, "rdma-library libibverbs.so.1": OK,
		"rdma-library rxe0": OK, "memlock ": OK}
	for _, f := range r.Findings {
		if v, ok := want[f.Check+" "+f.Subject]; ok && v != f.Verdict {
			t.Errorf("%+v", f)
		}
		delete(want, f.Check+" "+f.Subject)
	}
	if len(want) > 0 || r.Count(Fail) > 0 || r.Count(Unknown) > 0 {
		t.Errorf("missing: %v\n%s", want, r.Text(true))
	}
	if p := m.facts.Verbs.Asked.Port("rxe0", 1); p == nil || p.MTU != 1024 || p.GID != 1 ||
		chosen(&m.facts.RDMA[0].Ports[0], nil)[0].Index != p.GID {
		t.Errorf("the library says %+v", m.facts.Verbs.Asked)
	}
	// What this machine has not been asked for by its own name is not here.
	if r := RunRDMA(m, Needs{}, []string{"mlx5_0"}); r.Worst() != Fail {
		t.Errorf("%s", r.Text(true))
	}
}
