package verbs

import (
	"errors"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
)

// difference is where Soft-RoCE and the fake answer differently, and why the fake keeps its answer.
type difference struct {
	rxe, fake string
	why       string
}

var differences = map[string]difference{
	"bad-opcode": {"ok at post: taken", "ok at post: EINVAL",
		"Soft-RoCE takes any opcode at post and fails the request later; the fake refuses at once, so that it is found"},
	"err-atomic-unaligned": {"ok at post: EINVAL", "ok REM_INV_REQ_ERR",
		"Soft-RoCE looks at the remote address at post; in the specification the responder refuses it"},
	"err-recv-lkey": {"ok REM_OP_ERR, receiver LOC_QP_OP_ERR", "ok REM_OP_ERR, receiver LOC_PROT_ERR",
		"Soft-RoCE calls an unknown local key an operation error; the specification calls it a protection error"},
	"event-comm-est": {"ok no event", "ok communication established",
		"Soft-RoCE does not raise it for a message that arrives in RTR"},
	"flush-receive-late": {"ok stays", "ok flushed",
		"Soft-RoCE leaves a receive that is posted in the error state where it is, unless its task that flushes runs " +
			"only after the post; the specification flushes it"},
	"mw-bad-binds": {"ok MW_BIND_ERR, MW_BIND_ERR, SUCCESS, MW_BIND_ERR",
		"ok MW_BIND_ERR, MW_BIND_ERR, MW_BIND_ERR, SUCCESS",
		"Soft-RoCE takes the tag of the new key and ignores an index that is another window's; the last one then " +
			"meets a window that is bound"},
	"srq-last-wqe": {"ok no event", "ok last WQE reached",
		"Soft-RoCE does not raise it"},
}

// TestGuestSameChecksOnSoftRoCE runs the conformance program on a real kernel, and holds the fake
// to the result.
func TestGuestSameChecksOnSoftRoCE(t *testing.T) {
	testenv.Once(t)
	check := built[string](t)(Check())
	fake := conformance(t, "", nil)
	const inside = "/guest/bin/check"
	var lines []string
	r, err := guest.Run(t.Context(), guest.Spec{Profile: guest.Rdma, Files: []guest.File{{Host: check, Guest: inside}}},
		[]string{inside, "rxe0"}, func(_ int, line string) { lines = append(lines, line) })
	if errors.Is(err, guest.ErrMissing) || errors.Is(err, exec.ErrNotFound) {
		testenv.Missing(t, "a guest", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	testenv.Record(t, "guest", guest.Rdma.Name, r.String())
	v := r.Guests[0]
	if v.Err != nil {
		t.Fatalf("%v\n%s\n%s", v.Err, strings.Join(lines, "\n"), v.Console)
	}
	t.Logf("guest: %s", r)
	rxe := verdicts(t, strings.Join(lines, "\n"))
	for _, name := range slices.Sorted(maps.Keys(rxe)) {
		d, known := differences[name]
		switch {
		case name == "flush-receive-late" && rxe[name] == fake[name]: // the task of the kernel ran after the post
		case known && (rxe[name] != d.rxe || fake[name] != d.fake):
			t.Errorf("%s: rxe %q, fake %q: expected %q and %q", name, rxe[name], fake[name], d.rxe, d.fake)
		case !known && rxe[name] != fake[name]:
			t.Errorf("%s: rxe %q, fake %q", name, rxe[name], fake[name])
		case known && d.rxe == d.fake:
			t.Errorf("%s is no difference", name)
		}
	}
	for name := range fake {
		if _, ok := rxe[name]; !ok {
			t.Errorf("%s did not run in the guest", name)
		}
	}
}
