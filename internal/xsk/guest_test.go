package xsk

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
	"github.com/penstock-io/penstock/internal/sys"
)

// virtioCard are the options of a virtio card that can have native XDP: what it receives is neither
// merged nor without checksums.
const virtioCard = "disable-legacy=on,iommu_platform=on,ats=on,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,guest_csum=off"

// TestGuestCards runs over the drivers of cards, emulated, with the distribution's kernel: e1000e
// and vmxnet3 joined by a cable, and two of virtio. Errors must say what the kernel cannot do with
// each.
func TestGuestCards(t *testing.T) {
	testenv.Once(t)
	profile := guest.Nics
	profile.Name = "nics+xdp"
	profile.Modules = []string{"virtio_pci", "virtio_net", "e1000e", "vmxnet3"}
	profile.NICs = []guest.NIC{{Name: "nic0", Model: "e1000e", Hub: 1}, {Name: "nic1", Model: "vmxnet3", Hub: 1},
		{Name: "nic2", Model: "virtio-net-pci", Options: virtioCard, Hub: 2},
		{Name: "nic3", Model: "virtio-net-pci", Options: virtioCard, Hub: 2}}
	if guest.Enter(t, guest.Spec{Profile: profile}) {
		return
	}
	index := cards(t, len(profile.NICs))
	for _, pair := range [][2]int{{0, 1}, {1, 0}, {2, 3}} {
		e := &ends{index: [2]int{index[pair[0]], index[pair[1]]}}
		for _, generic := range []bool{true, false} {
			t.Run(fmt.Sprintf("nic%d-nic%d/generic=%t", pair[0], pair[1], generic), func(t *testing.T) {
				if native := pair[0] >= 2; !native && !generic {
					if _, err := e.attach(t, 1, -1, false, generic); !errors.Is(err, sys.EOPNOTSUPP) {
						t.Errorf("a driver without native XDP: %v", err)
					}
					return
				}
				overCards(t, e, generic)
			})
		}
	}
}

// TestGuestZeroCopy runs in zero-copy mode, which a recent kernel has for virtio: the device reads
// and writes the chunks.
func TestGuestZeroCopy(t *testing.T) {
	testenv.Once(t)
	profile := guest.Nics
	profile.Name = "nics+zerocopy"
	profile.Recent = true
	profile.Modules = []string{"virtio_pci", "virtio_net"}
	profile.NICs = nil
	for i := range 4 {
		profile.NICs = append(profile.NICs, guest.NIC{Name: fmt.Sprintf("nic%d", i), Model: "virtio-net-pci",
			Options: virtioCard, Hub: 1 + i/2})
	}
	if guest.Enter(t, guest.Spec{Profile: profile}) {
		return
	}
	index := cards(t, len(profile.NICs))
	e, e2 := &ends{index: [2]int{index[0], index[1]}}, &ends{index: [2]int{index[3], index[2]}}
	u := newUmem(t, 16)
	q := e.queue(t, 0, u, QueueConfig{Mode: ZeroCopy})
	if zc, why := q.ZeroCopy(); !zc || why != nil {
		t.Fatalf("zero-copy %t, %v", zc, why)
	}
	q.Close()
	// What the driver cannot do in this mode falls back to the other, and says so.
	q = e.queue(t, 0, u, QueueConfig{MultiBuffer: true})
	if zc, why := q.ZeroCopy(); zc || !errors.Is(why, ErrZeroCopy) || !strings.Contains(why.Error(), "MultiBuffer") {
		t.Errorf("in several chunks: zero-copy %t, %v", zc, why)
	}
	q.Close()
	t.Run("Modes", func(t *testing.T) { overCards(t, e, false) })
	t.Run("Forward", func(t *testing.T) { forward(t, e, e2, ZeroCopy, 300) })
	t.Run("LateWrites", func(t *testing.T) { lateWrites(t, e, ZeroCopy, 5, 256) })
	t.Run("BusyPoll", func(t *testing.T) {
		var s [2]*Socket
		for i := range s {
			q := e.queue(t, i, newUmem(t, 256), QueueConfig{Mode: ZeroCopy, NeedWakeup: true})
			c := SocketConfig{RxSize: 64, TxSize: 64}
			if i == 1 {
				c.BusyPoll = BusyPoll{Prefer: true, Microseconds: 20, Budget: 64}
			}
			s[i] = e.socket(t, i, q, c)
		}
		put(t, e.program(t, 1, -1, false, false), 0, s[1])
		f := &flow{t: t, from: s[0], to: s[1], count: 300, window: 16, lossy: true, busy: true, size: fixed(200),
			free: chunks(s[0].queue.umem, 0, 64), spare: chunks(s[1].queue.umem, 0, 200)}
		f.run()
	})
	t.Run("SharedQueue", func(t *testing.T) {
		m := e.program(t, 1, 21, false, false) // by the last byte of the number
		from := e.socket(t, 0, e.queue(t, 0, newUmem(t, 128), QueueConfig{Mode: ZeroCopy, NeedWakeup: true}),
			SocketConfig{TxSize: 64})
		u := newUmem(t, 256)
		q := e.queue(t, 1, u, QueueConfig{Mode: ZeroCopy, NeedWakeup: true})
		var s []*Socket
		for i := range 4 {
			s = append(s, e.socket(t, 1, q, SocketConfig{RxSize: 64, TxSize: 64}))
			put(t, m, i, s[i])
			put(t, m, i+4, s[i])
		}
		f := &flow{t: t, from: from, to: s[0], more: s[1:], count: 300, window: 16, lossy: true, size: fixed(200),
			free: chunks(from.queue.umem, 0, 64), spare: chunks(u, 0, 200)}
		f.seen = func(i, r int) {
			if i%4 != r {
				t.Errorf("packet %d came to socket %d", i, r)
			}
		}
		f.run()
		s[0].Close() // the first one: the others stay
		put(t, m, 0, s[1])
		put(t, m, 4, s[1])
		f = &flow{t: t, from: from, to: s[1], more: s[2:], count: 300, window: 16, lossy: true, size: fixed(200),
			free: f.free, spare: f.spare, filled: f.filled}
		f.run()
	})
}

// cards brings the guest's first n cards up and gives their indices.
func cards(t *testing.T, n int) []int {
	index := make([]int, n)
	for i := range index {
		dev := fmt.Sprintf("nic%d", i)
		os.WriteFile("/proc/sys/net/ipv6/conf/"+dev+"/disable_ipv6", []byte("1"), 0)
		d, err := net.InterfaceByName(dev)
		if err != nil {
			t.Fatal(err)
		}
		index[i] = d.Index
		if out, err := exec.Command("ip", "link", "set", dev, "up", "promisc", "on").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for i := range index {
		carrier(t, fmt.Sprintf("nic%d", i))
	}
	return index
}

// carrier waits until an interface can be used.
func carrier(t *testing.T, dev string) {
	events, err := sys.WatchLinks()
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	for deadline := ctx(t); ; {
		if b, _ := os.ReadFile("/sys/class/net/" + dev + "/operstate"); strings.TrimSpace(string(b)) == "up" {
			return
		}
		if deadline.Err() != nil {
			t.Fatalf("%s has no carrier", dev)
		}
		if _, err := sys.PollIn(1000, events.FD()); err != nil {
			t.Fatal(err)
		}
		events.Drain()
	}
}

func overCards(t *testing.T, e *ends, generic bool) {
	m, err := e.attach(t, 1, -1, false, generic)
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []Mode{Copy, Auto} {
		var s [2]*Socket
		for i := range s {
			q := e.queue(t, i, newUmem(t, 512), QueueConfig{Mode: mode, NeedWakeup: true, FillSize: 512})
			s[i] = e.socket(t, i, q, SocketConfig{RxSize: 256, TxSize: 64})
			zc, why := q.ZeroCopy()
			if mode == Copy && zc || zc == (why != nil) || why != nil && !errors.Is(why, ErrZeroCopy) {
				t.Errorf("mode %v: zero-copy %t, %v", mode, zc, why)
			}
			t.Logf("%v: zero-copy %t: %v", mode, zc, why)
		}
		put(t, m, 0, s[1])
		f := &flow{t: t, from: s[0], to: s[1], count: 300, window: 16, lossy: true, size: func(i int) int {
			return 60 + i%1400
		},
			free: chunks(s[0].queue.umem, 0, 64), spare: chunks(s[1].queue.umem, 0, 400)}
		f.run()
		t.Logf("%v: %d packets, %d sent again", mode, f.n, f.again)
		for i := range s {
			s[i].Close()
			s[i].queue.Close()
			if err := s[i].queue.Released(ctx(t)); err != nil {
				t.Error(err)
			}
		}
	}
	u := newUmem(t, 16)
	q, err := u.OpenQueue(ctx(t), QueueConfig{Interface: e.index[0], MultiBuffer: true})
	if err == nil {
		zc, why := q.ZeroCopy()
		t.Logf("MultiBuffer: zero-copy %t: %v", zc, why)
		q.Close()
	} else if !errors.Is(err, ErrUnsupported) {
		t.Errorf("packets in several chunks: %v", err)
	} else {
		t.Logf("MultiBuffer: %v", err)
	}
}
