//go:build dpdk

package dpdk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
	"github.com/penstock-io/penstock/mem"
)

// guestNics has two pairs of joined cards: an e1000e and a vmxnet3, and two of virtio. All are
// behind an IOMMU. The addresses that it translates have so many bits.
func guestNics(bits int) guest.Profile {
	p := guest.Nics
	p.Name, p.Package = fmt.Sprintf("nics+dpdk%d", bits), "dpdk"
	p.Machine = []string{"-device", fmt.Sprintf("intel-iommu,intremap=on,device-iotlb=on,aw-bits=%d", bits)}
	p.NICs = append(p.NICs[:2:2], guest.NIC{Name: "nic2", Model: "virtio-net-pci",
		Options: "disable-legacy=on,iommu_platform=on,ats=on", Hub: 2},
		guest.NIC{Name: "nic3", Model: "virtio-net-pci", Options: "disable-legacy=on,iommu_platform=on,ats=on", Hub: 2})
	for _, lib := range []string{"bus_pci", "bus_vdev", "mempool_ring", "net_e1000", "net_vmxnet3", "net_virtio"} {
		p.Files = append(p.Files, "/usr/lib/x86_64-linux-gnu/dpdk/pmds-*/librte_"+lib+".so*")
	}
	return p
}

// bind gives all network cards of the machine to vfio-pci. It returns their addresses in the order
// of the bus.
func bind(t *testing.T) (cards []string) {
	t.Helper()
	devices, err := filepath.Glob("/sys/bus/pci/devices/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		if class, err := os.ReadFile(filepath.Join(d, "class")); err != nil ||
			strings.TrimSpace(string(class)) != "0x020000" {
			continue
		}
		address := filepath.Base(d)
		if err := errors.Join(os.WriteFile(filepath.Join(d, "driver_override"), []byte("vfio-pci"), 0),
			os.WriteFile("/sys/bus/pci/drivers_probe", []byte(address), 0)); err != nil {
			t.Fatal(err)
		}
		cards = append(cards, address)
	}
	return cards
}

// TestGuestNics goes over emulated cards with DPDK's own drivers: their memory accesses pass an
// IOMMU, which knows no address that was not registered.
func TestGuestNics(t *testing.T) {
	testenv.Once(t)
	if guest.Enter(t, guest.Spec{Profile: guestNics(48), Linked: true}) {
		return
	}
	eal = EAL{Huge: HugeOn, EALMemory: 64 << 20}
	cards := bind(t)
	if len(cards) != 4 {
		t.Fatalf("cards %v", cards)
	}
	for _, way := range [][2]int{{0, 1}, {1, 0}, {2, 3}} {
		t.Run(fmt.Sprint(way), func(t *testing.T) {
			into := pool(t) // has all its slots again when the port is closed
			var ports [2]*Port
			for i, c := range way {
				ports[i] = openPort(t, engine.PortSpec{Address: "dpdk://" + cards[c]}, Options{Promiscuous: true})
			}
			const packets = 2000
			a, b := ports[0], ports[1]
			third := openPort(t, engine.PortSpec{Address: "dpdk://" + cards[(way[0]+2)%4]}, Options{})
			if _, err := third.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{into}}); err != nil {
				// it reaches the same memory
				t.Fatal(err)
			}
			n := exchange(t, a, b, engine.RxSpec{Pools: []*mem.Pool{into}}, packets, 600, func() {
				if err := third.Close(); err != nil {
					t.Error(err)
				}
			})
			var s engine.PortStats
			b.Stats(&s)
			// what virtio has had since before is copied
			n = min(n, exchange(t, a, b, engine.RxSpec{Pools: []*mem.Pool{into}}, packets, 600))
			t.Logf("%d packets of %d from %s to %s: %+v", n, packets, a.info.Driver, b.info.Driver, s.Rx)
			if n < packets/2 || s.Rx.Copied != 0 {
				t.Errorf("%d packets of %d, %d bytes of them were copied", n, packets, s.Rx.Copied)
			}
		})
	}
}

// TestGuestNarrowIOMMU has an IOMMU that does not translate the addresses at which Linux puts
// memory.
func TestGuestNarrowIOMMU(t *testing.T) {
	testenv.Once(t)
	if guest.Enter(t, guest.Spec{Profile: guestNics(39), Linked: true}) {
		return
	}
	eal = EAL{Huge: HugeOn, EALMemory: 64 << 20}
	cards, into := bind(t), pool(t)
	auto := openPort(t, engine.PortSpec{Address: "dpdk://" + cards[0]}, Options{})
	if _, err := auto.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{into}}); !errors.Is(err, engine.ErrUnavailable) ||
		!strings.Contains(err.Error(), "memory: lent") {
		t.Errorf("memory that the card does not reach: %v", err)
	}
	auto.Close()
	lent := Options{Promiscuous: true, Memory: MemoryLent}
	a, b := openPort(t, engine.PortSpec{Address: "dpdk://" + cards[1]}, lent),
		openPort(t, engine.PortSpec{Address: "dpdk://" + cards[0]}, lent)
	const packets = 2000
	n := exchange(t, a, b, engine.RxSpec{Pools: []*mem.Pool{into}}, packets, 600)
	var from, to engine.PortStats
	a.Stats(&from)
	b.Stats(&to)
	if n < packets/2 || to.Rx.Copied < packets/2*600 || from.Tx.Copied < packets*600 {
		t.Errorf("%d packets of %d; %d and %d bytes were copied", n, packets, from.Tx.Copied, to.Rx.Copied)
	}
}
