package verbs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
)

// TestChaos moves bytes both ways while queue pairs are killed at random, exports are revoked and
// operations are canceled. Whatever was neither revoked nor canceled arrives, bytes and
// notifications alike, once; what ended with an error notified no peer.
func TestChaos(t *testing.T) {
	for _, seed := range []uint64{1, 2, 3, uint64(time.Now().UnixNano())} {
		for _, script := range []string{"mode post", fmt.Sprintf("mode wire; delay 20us; seed %d", seed%1000)} {
			t.Run(fmt.Sprintf("%s/%d", script, seed), func(t *testing.T) { chaos(t, script, seed) })
		}
	}
}

func chaos(t *testing.T, script string, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 9))
	w := newWorld(t, script)
	o := Options{Tuning: Tuning{Piece: just(64 << 10)}, NoWindows: seed%2 == 0}
	if seed%4 > 1 {
		o.Tuning = tight
	}
	r := newRig(t, w, o, 1+rng.IntN(3))
	const count, room = 60, 300 << 10
	type job struct {
		op       path.Op
		res      *pathtest.Result
		canceled bool
		export   int
	}
	sides := r.Sides()
	paths := [2]*Path{r.a, r.b}
	var jobs [2][]job
	var exports [2][3]*path.Export
	var revoked [2][3]bool
	var want [2][3][]byte // what the exports hold at the end, where it is known
	for i, s := range sides {
		for k := range exports[i] {
			exports[i][k] = s.Other().Export(s.Other().Region(count*room), both)
			pathtest.Fill(exports[i][k].Span().Bytes(), uint64(100+10*i+k))
			want[i][k] = slices.Clone(exports[i][k].Span().Bytes())
		}
		local := s.Region(count * room)
		pathtest.Fill(local.All().Bytes(), uint64(i))
		for n := range count {
			size := rng.IntN(500)
			if rng.IntN(3) == 0 {
				size = rng.IntN(room)
			}
			k := rng.IntN(3)
			op := path.Op{Kind: path.Put, Copies: copyTo(local, exports[i][k], n*room, size), Notify: rng.IntN(2) == 0,
				Imm: uint64(n)}
			switch rng.IntN(4) {
			case 0:
				op.Kind = path.Get
			case 1:
				op.Msg = []byte(fmt.Sprint("message ", n))
			}
			jobs[i] = append(jobs[i], job{op: op, export: k})
		}
	}
	kills := 0
	var tokens [2]uint64 // that the sides have issued
	for n := range count {
		for i, s := range sides {
			j := &jobs[i][n]
			j.res = s.Post(j.op)[0]
			tokens[i]++
			switch rng.IntN(12) {
			case 0:
				for more := true; more && kills < 20; more = rng.IntN(3) > 0 {
					// also the queue pair that is to replace another one
					p := paths[rng.IntN(2)]
					if l := p.data[rng.IntN(len(p.data))]; l.qp != nil {
						w.do(t, fmt.Sprintf("kill 0 %#x", l.qp.Num()))
						kills++
					}
					for range rng.IntN(4) {
						sides[rng.IntN(2)].Poll()
					}
				}
			case 1:
				j.canceled = s.Path.Cancel(tokens[i])
			case 2:
				if k := rng.IntN(3); k > 0 && !revoked[i][k] && n > 2*count/3 {
					revoked[i][k] = true
					s.Other().Exports.Revoke(exports[i][k])
					tokens[1-i]++
					s.Other().Post(path.Op{Kind: path.Fence, Key: exports[i][k].Key()})
				}
			}
		}
		r.Pump(rng.IntN(3))
	}
	ended := func() bool {
		for i := range jobs {
			for _, j := range jobs[i] {
				if j.res.Times == 0 {
					return false
				}
			}
		}
		return true
	}
	r.Drive("all operations", ended)
	r.Pump(100)
	if r.A.Down != nil || r.B.Down != nil {
		t.Fatalf("down: %v; %v", r.A.Down, r.B.Down)
	}
	for i, s := range sides {
		seen := map[uint64]int{}
		for _, n := range s.Other().Notices {
			seen[n.Imm]++
		}
		done := 0
		for n, j := range jobs[i] {
			err := j.res.Err
			switch {
			case err == nil:
				done++
			case j.canceled && errors.Is(err, path.ErrCanceled):
			case revoked[i][j.export] && (errors.Is(err, path.ErrRevoked) || errors.Is(err, path.ErrKey)):
			default:
				t.Errorf("side %d, operation %d: %v", i, n, err)
			}
			notices := 0
			if err == nil && j.op.Notify {
				notices = 1
			}
			if seen[uint64(n)] != notices {
				t.Errorf("side %d, operation %d (error %v): %d notifications, expected %d", i, n, err, seen[uint64(n)],
					notices)
			}
			c := &j.op.Copies[0]
			at, size := c.RemoteOff, c.Local.Len
			there := exports[i][j.export].Span().Bytes()
			if j.op.Kind == path.Put && err == nil {
				copy(want[i][j.export][at:], c.Local.Bytes())
			}
			if err == nil && string(there[at:at+size]) != string(c.Local.Bytes()) {
				t.Errorf("side %d, operation %d: wrong bytes", i, n)
			}
			if j.op.Kind == path.Put && err != nil { // undefined, but within its bounds
				copy(want[i][j.export][at:at+size], there[at:])
			}
		}
		for k := range want[i] {
			if string(want[i][k]) != string(exports[i][k].Span().Bytes()) {
				t.Errorf("side %d: export %d has bytes that no operation put there", i, k)
			}
		}
		if done < count/6 {
			t.Errorf("side %d: only %d of %d operations succeeded", i, done, count)
		}
	}
	t.Logf("%d kills, %d and %d queue pairs replaced, %d and %d operations restarted", kills, r.a.replaced,
		r.b.replaced, r.a.resumed, r.b.resumed)
}
