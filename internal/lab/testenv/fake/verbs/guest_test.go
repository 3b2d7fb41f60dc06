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
	"err-bounds-read": {"ok REM_ACCESS_ERR, no event", "ok REM_ACCESS_ERR, local access violation work queue error",
		"Soft-RoCE's responder raises no affiliated event; the specification has one (11.6.3.2)"},
	"err-lkey": {"ok LOC_QP_OP_ERR", "ok LOC_PROT_ERR",
		"Soft-RoCE calls an unknown local key an operation error; the specification calls it a protection error"},
	"err-lkey-other-pd": {"ok LOC_QP_OP_ERR", "ok LOC_PROT_ERR",
		"Soft-RoCE calls an unknown local key an operation error; the specification calls it a protection error"},
	"err-qp-right": {"ok REM_INV_REQ_ERR, no event", "ok REM_INV_REQ_ERR, invalid request local work queue error",
		"Soft-RoCE's responder raises no affiliated event; the specification has one (11.6.3.2)"},
	"err-recv-lkey": {"ok REM_OP_ERR, receiver LOC_QP_OP_ERR", "ok REM_OP_ERR, receiver LOC_PROT_ERR",
		"Soft-RoCE calls an unknown local key an operation error; the specification calls it a protection error"},
	"err-recv-small": {"ok REM_OP_ERR, receiver LOC_QP_OP_ERR, no event",
		"ok REM_INV_REQ_ERR, receiver LOC_LEN_ERR, no event",
		"Soft-RoCE treats a receive that is too small as any other failed copy; the specification has a length error " +
			"and an invalid request"},
	"err-rkey": {"ok REM_ACCESS_ERR, no event", "ok REM_ACCESS_ERR, local access violation work queue error",
		"Soft-RoCE's responder raises no affiliated event; the specification has one (11.6.3.2)"},
	"event-comm-est": {"ok no event", "ok communication established",
		"Soft-RoCE does not raise it for a message that arrives in RTR"},
	"flush-receive-late": {"ok stays", "ok flushed",
		"Soft-RoCE leaves a receive that is posted in the error state where it is, unless its task that flushes runs " +
			"only after the post; the specification flushes it"},
	"mr-dmabuf": {"absent EOPNOTSUPP", "ok",
		"Soft-RoCE of Linux 6.1 has none; \"absent dmabuf\" is the same here"},
	"mr-rereg": {"absent EOPNOTSUPP", "ok",
		"Soft-RoCE of Linux 6.1 has none"},
	"mw-bad-binds": {"ok MW_BIND_ERR, MW_BIND_ERR, SUCCESS, MW_BIND_ERR",
		"ok MW_BIND_ERR, MW_BIND_ERR, MW_BIND_ERR, SUCCESS",
		"Soft-RoCE takes the tag of the new key and ignores an index that is another window's; the last one then " +
			"meets a window that is bound"},
	"mw-outside": {"ok SUCCESS, written", "ok REM_ACCESS_ERR, untouched",
		"Soft-RoCE of Linux 6.1 checks the bounds of the region and not those of the window: only the fake shows " +
			"that a window bounds"},
	"mw-send-inv": {"ok flag not set", "ok flag set",
		"Soft-RoCE gives the kernel's flag to the user, where this bit means a checksum"},
	"srq-last-wqe": {"ok no event", "ok last WQE reached",
		"Soft-RoCE does not raise it"},
	"uc-read": {"ok at post: taken", "ok at post: EINVAL",
		"Soft-RoCE takes it at post and fails it later"},
	"ud-own-qkey": {"ok dropped", "ok delivered",
		"Soft-RoCE sends the number as it is; in the specification the highest bit asks for the sender's own key"},
	"ud-refused": {"ok write at post: taken, handle without GRH: EINVAL",
		"ok write at post: EINVAL, handle without GRH: EINVAL",
		"Soft-RoCE takes it at post and fails it later"},
	"ud-small-receive": {"ok receive 2: LOC_QP_OP_ERR", "ok receive 2: LOC_LEN_ERR",
		"the same for datagrams"},
	"xrc": {"absent EOPNOTSUPP", "ok",
		"Soft-RoCE has none"},
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
