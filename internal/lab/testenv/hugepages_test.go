package testenv

import (
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/sys"
)

// fakePool does with pages what Linux does: set makes pages of the surplus permanent before it
// makes new ones, and takes free ones away before it makes those in use surplus.
type fakePool struct{ permanent, surplus, used, room int }

func (f *fakePool) pool() pool {
	return pool{
		state: func() (sys.HugePages, error) {
			total := f.permanent + f.surplus
			return sys.HugePages{Size: 2 << 20, Total: total, Surplus: f.surplus, Free: total - f.used}, nil
		},
		set: func(n int) error {
			for f.permanent < n && f.surplus > 0 {
				f.surplus--
				f.permanent++
			}
			for f.permanent < n && f.room > 0 {
				f.room--
				f.permanent++
			}
			for f.permanent > n && f.permanent+f.surplus > f.used {
				f.permanent--
				f.room++
			}
			f.surplus += max(f.permanent-n, 0)
			f.permanent = min(f.permanent, n)
			return nil
		},
	}
}

// free ends the use of a page.
func (f *fakePool) free() {
	f.used--
	if f.surplus > 0 {
		f.surplus--
		f.room++
	}
}

// A page that a socket still holds when its test has taken it away is surplus. Tests that come
// meanwhile leave the pool as it was.
func TestHugePagesThatAreStillInUse(t *testing.T) {
	for _, early := range []bool{true, false} { // whether the socket lets go before the second test ends
		f := &fakePool{permanent: 3, used: 3, room: 100}
		p := f.pool()
		first, err := p.add(2)
		if err != nil || first != 2 {
			t.Fatal(first, err)
		}
		f.used++ // by a socket
		if err := p.takeAway(first); err != nil || f.permanent != 3 || f.surplus != 1 {
			t.Fatalf("%+v, %v", f, err)
		}
		second, err := p.add(2)
		if h, _ := p.state(); err != nil || h.Free != 2 {
			t.Fatalf("2 pages were asked for: %+v, %v", h, err)
		}
		if early {
			f.free()
		}
		if err := p.takeAway(second); err != nil {
			t.Error(err)
		}
		if !early {
			f.free()
		}
		if f.permanent != 3 || f.surplus != 0 || f.used != 3 || f.room != 100 {
			t.Errorf("the socket is closed early: %v: the pool is %+v", early, f)
		}
	}
	f := &fakePool{room: 1}
	if n, err := f.pool().add(3); n != 1 || err != nil {
		t.Errorf("%d pages were added of 1 that can be, %v", n, err)
	}
}

// Several tests at once have the pages that they asked for, and each takes away as many as it has
// added.
func TestHugePages(t *testing.T) {
	const size = 2 << 20
	HugePages(t, size, 0)
	p := kernelPool(size)
	before, err := p.state()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5 {
				n, err := p.add(2)
				if h, _ := p.state(); err != nil || h.Total < n {
					t.Errorf("%d pages were added, %d are there, %v", n, h.Total, err)
				}
				if err := p.takeAway(n); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if after, err := p.state(); err != nil || after.Total-after.Surplus != before.Total-before.Surplus {
		t.Errorf("the pool was %+v and is %+v, %v", before, after, err)
	}
}
