package tcp

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"golang.org/x/sys/unix"
)

// sh runs a line of the shell in the guest.
func sh(t *testing.T, line string) {
	t.Helper()
	if out, err := exec.Command("/bin/sh", "-ec", line).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// inNamespace runs f in a network namespace. Sockets that f makes stay there.
func inNamespace(t *testing.T, name string, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never back: the thread is of no use to others
		ns, err := os.Open("/run/netns/" + name)
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			ns.Close()
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestGuestZeroCopy sends through a pair of cards that take pages as they are: the kernel must
// report that it copied none, which loopback and veth never do.
func TestGuestZeroCopy(t *testing.T) {
	if guest.Enter(t, guest.Spec{Profile: guest.Net}) {
		return
	}
	// The path speaks to loopback addresses only, so these lead through the cards. The far card is
	// in a namespace: the kernel would not send through a cable to itself.
	sh(t, `ip netns add far
ip link set nic1 netns far
side() { # namespace, card, address
	ip netns exec $1 sh -ec "echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet; ip link set lo up; ip link set $2 up
	ip route del local 127.0.0.0/8 dev lo table local; ip addr add $3/24 dev $2"
}
ip netns attach near $$
side near nic0 127.9.0.1
side far nic1 127.9.0.2
timeout 60 sh -c 'until ping -c 1 -W 1 127.9.0.2; do :; done' # the cards find their link up after some seconds`)
	for _, size := range []int{64 << 10, 1<<20 + 4096, 2 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			e := acrossBench(t, Options{Addr: "127.9.0.2:0", ZeroCopy: true, CongestionControl: "reno"}, size)
			x := rand.NewChaCha8([32]byte{byte(size)})
			for i := range 2 {
				x.Read(e.la.All().Bytes())
				e.do(t, []path.Op{{Kind: path.Put, Copies: []path.Copy{{Local: e.la.All(), Key: e.kb}}}})
				if !bytes.Equal(e.la.All().Bytes(), e.lb.All().Bytes()) {
					t.Fatalf("put %d: bytes differ", i)
				}
			}
			st := e.a.Stats()
			t.Logf("%d sends from pages, %d copied: %s", st.ZeroCopySends, st.ZeroCopyCopied, e.a.zcLine)
			if st.ZeroCopySends == 0 || e.a.zc.reports != st.ZeroCopySends || st.ZeroCopyCopied != 0 || !e.a.zc.on {
				t.Errorf("%d sends, %d reports, %d copied, on: %v; expected as many reports as sends, no copies, on",
					st.ZeroCopySends, e.a.zc.reports, st.ZeroCopyCopied, e.a.zc.on)
			}
		})
	}
	// The control: on loopback the kernel copies, and the same counters say so.
	t.Run("Loopback", func(t *testing.T) {
		e := newBench(t, Options{ZeroCopy: true, CongestionControl: "reno"}, 1, false, 1<<20)
		e.serve()
		e.do(t, []path.Op{{Kind: path.Put, Copies: []path.Copy{{Local: e.la.All(), Key: e.kb}}}})
		if st := e.a.Stats(); st.ZeroCopySends == 0 || st.ZeroCopyCopied != st.ZeroCopySends {
			t.Errorf("loopback: %d sends, %d copied; expected all", st.ZeroCopySends, st.ZeroCopyCopied)
		}
	})
}

// acrossBench is newBench with the peer, which is already served, in the namespace "far".
func acrossBench(t *testing.T, o Options, size int) *bench {
	t.Helper()
	e := &bench{done: make(chan struct{})}
	side := func() (*mem.Region, path.Key, setup.Config) {
		r, err := mem.Alloc(mem.Options{Size: size})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		x := new(path.Exports)
		ex, err := x.Add(r.All(), path.Read|path.Write)
		if err != nil {
			t.Fatal(err)
		}
		// the loopback addresses lead from one namespace to the other
		return r, ex.Key(), setup.Config{Rights: path.Read | path.Write, Exports: x, Users: path.AnyUser()}
	}
	var ca, cb setup.Config
	e.la, e.ka, ca = side()
	e.lb, e.kb, cb = side()
	d := New(o)
	var l setup.Listener
	var err error
	inNamespace(t, "far", func() { l, err = d.Listen() })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tok := newToken()
	accepted := make(chan error, 1)
	go func() {
		p, err := l.Accept(ctx, tok, cb)
		if err == nil {
			e.b = p.(*Path)
		}
		accepted <- err
	}()
	p, err := d.Dial(ctx, setup.Offer{Addr: l.Addr(), Token: tok}, ca)
	if err != nil {
		t.Fatal(err)
	}
	e.a = p.(*Path)
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.stop.Store(true)
		<-e.done
		e.a.Close()
		e.b.Close()
	})
	e.serve()
	return e
}
