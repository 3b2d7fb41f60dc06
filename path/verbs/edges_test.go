package verbs

import (
	"errors"
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/path/pathtest"
)

// crowd fills a rail of b with puts whose completions stay away, but for the room that is kept for windows, and has a ask for so many exports.
// mute: b has no credits left to answer, until a polls.
func crowd(t *testing.T, r *rig, rail, exports int, mute bool) (asked []*path.Export, puts []*pathtest.Result) {
	t.Helper()
	back, e := r.B.Region(4096), r.A.Export(r.A.Region(4096), both)
	for k := range r.b.rails { // only one carries anything
		r.b.rails[k].serves = 0
	}
	l := r.b.rails[rail]
	l.serves = both
	r.B.MustDo(path.Op{Kind: path.Put, Copies: copyTo(back, e, 0, 1)})
	r.w.do(t, "delay send 1 60s")
	for l.room() > keepBinds {
		r.B.Post(path.Op{Kind: path.Put, Copies: copyTo(back, e, 0, 8)})
	}
	for k := range r.b.rails {
		r.b.rails[k].serves = both
	}
	for mute && r.b.ctl.out.left() > plainReserve {
		r.B.Post(path.Op{Kind: path.Notify})
		r.B.Poll()
	}
	local := r.A.Region(4096)
	for range exports {
		x := r.B.Export(r.B.Region(4096), both)
		asked = append(asked, x)
		puts = append(puts, r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, x, 0, 64)})...)
	}
	return asked, puts
}

// TestFenceBeforeItsWindow: an export is revoked while it waits for room to bind its window. It is taken back once: its registration may be
// another path's as well.
func TestFenceBeforeItsWindow(t *testing.T) {
	for _, rails := range []int{1, 2} { // with two, the window of the other rail is bound meanwhile
		t.Run(fmt.Sprint(rails), func(t *testing.T) {
			w := newWorld(t, "")
			r := newRig(t, w, Options{Depth: 128}, rails)
			asked, puts := crowd(t, r, 0, keepBinds+1, false)
			r.B.Poll()
			last := len(asked) - 1
			if n := len(r.b.binds); n != 1 || r.b.binds[0].export != asked[last] {
				t.Fatalf("%d exports wait for room", n)
			}
			r.B.Exports.Revoke(asked[last])
			fence := r.B.Post(path.Op{Kind: path.Fence, Key: asked[last].Key()})[0]
			r.Drive("the fence and the put behind it", func() bool { return fence.Times > 0 && puts[last].Times > 0 })
			if fence.Err != nil || !errors.Is(puts[last].Err, path.ErrRevoked) {
				t.Errorf("fence: %v; put: %v", fence.Err, puts[last].Err)
			}
		})
	}
}

// TestOneAnswer: an export has its window on one rail, and waits for room on another one that breaks, while no answer can be sent. The peer gets
// one answer.
func TestOneAnswer(t *testing.T) {
	w := newWorld(t, "")
	r := newRig(t, w, Options{Depth: 128}, 2)
	_, puts := crowd(t, r, 1, keepBinds+1, true)
	for range 3 {
		r.B.Poll()
	}
	if n := len(r.b.binds); n != 1 {
		t.Fatalf("%d exports wait for room", n)
	}
	r.kill(t, r.b, 1)
	for r.b.rails[1].rail.state == railUp {
		r.B.Poll()
	}
	r.Drive("the puts", func() bool {
		for _, x := range puts {
			if x.Times == 0 {
				return false
			}
		}
		return true
	})
	for i, x := range puts {
		if x.Err != nil {
			t.Errorf("put %d: %v", i, x.Err)
		}
	}
}
