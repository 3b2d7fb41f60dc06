package guest

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"golang.org/x/sys/unix"
)

// Requests of the kernel's linux/vfio.h.
const (
	vfioBase           = 0x3b<<8 + 100
	vfioGetAPIVersion  = vfioBase + 0
	vfioCheckExtension = vfioBase + 1
	vfioSetIOMMU       = vfioBase + 2
	vfioGroupStatus    = vfioBase + 3
	vfioSetContainer   = vfioBase + 4
	vfioGetDevice      = vfioBase + 6
	vfioDeviceInfo     = vfioBase + 7
	vfioMapDMA         = vfioBase + 13
	vfioUnmapDMA       = vfioBase + 14
	vfioType1v2        = 3
	vfioViable         = 1
	vfioDevicePCI      = 1 << 1
)

// ioctl makes a request with a number or with a pointer.
func ioctl[A uintptr | unsafe.Pointer](fd int, request uintptr, arg A) (int, error) {
	r, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	if e != 0 {
		return -1, e
	}
	return int(r), nil
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

// A card is one of the profile's, bound to vfio-pci.
type card struct{ name, address, group string }

// bindNics gives all cards of the machine to vfio-pci.
func bindNics(t *testing.T) []card {
	t.Helper()
	// vendor and device
	want := map[string]string{"0x8086 0x10d3": "e1000e", "0x15ad 0x07b0": "vmxnet3", "0x1af4 0x1041": "virtio-net"}
	devices, err := filepath.Glob("/sys/bus/pci/devices/*")
	if err != nil {
		t.Fatal(err)
	}
	var cards []card
	for _, d := range devices {
		read := func(name string) string {
			b, err := os.ReadFile(filepath.Join(d, name))
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(string(b))
		}
		if read("class") != "0x020000" {
			continue
		}
		name, ok := want[read("vendor")+" "+read("device")]
		if !ok {
			t.Errorf("%s is an unexpected card: %s %s", d, read("vendor"), read("device"))
			continue
		}
		delete(want, read("vendor")+" "+read("device"))
		address := filepath.Base(d)
		write(t, filepath.Join(d, "driver_override"), "vfio-pci")
		write(t, "/sys/bus/pci/drivers_probe", address)
		if driver, err := os.Readlink(filepath.Join(d, "driver")); err != nil || filepath.Base(driver) != "vfio-pci" {
			t.Errorf("%s at %s: driver %q, %v", name, address, driver, err)
		}
		group, err := os.Readlink(filepath.Join(d, "iommu_group"))
		if err != nil {
			t.Errorf("%s at %s has no IOMMU group: %v", name, address, err)
			continue
		}
		cards = append(cards, card{name, address, filepath.Base(group)})
	}
	if len(want) > 0 || t.Failed() {
		t.Fatalf("cards %v; missing %v", cards, want)
	}
	return cards
}

// TestGuestNics binds all cards to vfio-pci, opens their IOMMU groups, and maps a huge page for the
// cards to reach.
func TestGuestNics(t *testing.T) {
	if Enter(t, Spec{Profile: Nics}) {
		return
	}
	cards := bindNics(t)
	container, err := unix.Open("/dev/vfio/vfio", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(container)
	if v, err := ioctl(container, vfioGetAPIVersion, uintptr(0)); err != nil || v != 0 {
		t.Errorf("API version %d, %v", v, err)
	}
	if v, err := ioctl(container, vfioCheckExtension, uintptr(vfioType1v2)); err != nil || v != 1 {
		t.Errorf("IOMMU type 1 version 2: %d, %v", v, err)
	}
	groups := map[string]bool{}
	for _, c := range cards {
		name := c.name
		if groups[c.group] {
			t.Errorf("%s shares IOMMU group %s with another card", name, c.group)
		}
		groups[c.group] = true
		group, err := unix.Open("/dev/vfio/"+c.group, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatalf("%s: group %s: %v", name, c.group, err)
		}
		defer unix.Close(group)
		status := [2]uint32{8}
		if _, err := ioctl(group, vfioGroupStatus, unsafe.Pointer(&status)); err != nil || status[1]&vfioViable == 0 {
			t.Fatalf("%s: group %s: flags %#x, %v; expected viable", name, c.group, status[1], err)
		}
		fd := int32(container)
		if _, err := ioctl(group, vfioSetContainer, unsafe.Pointer(&fd)); err != nil {
			t.Fatalf("%s: set container: %v", name, err)
		}
		if len(groups) == 1 {
			if _, err := ioctl(container, vfioSetIOMMU, uintptr(vfioType1v2)); err != nil {
				t.Fatalf("set IOMMU: %v", err)
			}
		}
		address, _ := unix.BytePtrFromString(c.address)
		device, err := ioctl(group, vfioGetDevice, unsafe.Pointer(address))
		if err != nil {
			t.Fatalf("%s: device %s: %v", name, c.address, err)
		}
		defer unix.Close(device)
		info := [6]uint32{24} // argsz, flags, regions, interrupts, ...
		if _, err := ioctl(device, vfioDeviceInfo, unsafe.Pointer(&info)); err != nil || info[1]&vfioDevicePCI == 0 ||
			info[2] == 0 {
			t.Errorf("%s: flags %#x, %d regions, %v", name, info[1], info[2], err)
		}
		if name == "virtio-net" {
			t.Run("Queues", func(t *testing.T) {
				if why := os.Getenv(TapEnv); why != "" {
					testenv.Missing(t, "a tap device of the host, for several queues", errors.New(why))
				}
				if pairs := queuePairs(t, device); pairs != 4 {
					t.Errorf("virtio-net has %d pairs of queues, expected 4", pairs)
				}
			})
		}
	}
	const huge = 2 << 20
	mem, err := unix.Mmap(-1, 0, huge, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB|unix.MAP_POPULATE)
	if err != nil {
		t.Fatalf("a huge page: %v", err)
	}
	defer unix.Munmap(mem)
	mem[huge-1] = 1
	dma := struct {
		argsz, flags     uint32
		vaddr, iova, len uint64
	}{32, 3, uint64(uintptr(unsafe.Pointer(&mem[0]))), 1 << 30, huge}
	if _, err := ioctl(container, vfioMapDMA, unsafe.Pointer(&dma)); err != nil {
		t.Fatalf("mapping the huge page for the cards: %v", err)
	}
	unmap := struct {
		argsz, flags uint32
		iova, len    uint64
	}{24, 0, 1 << 30, huge}
	if _, err := ioctl(container, vfioUnmapDMA, unsafe.Pointer(&unmap)); err != nil || unmap.len != huge {
		t.Errorf("unmapping it: %d bytes, %v", unmap.len, err)
	}
}

// queuePairs asks a virtio card for its max_virtqueue_pairs, as a driver in user space would:
// through the capability that says where the device's own configuration is (virtio 1.1, 4.1.4 and
// 5.1.4).
func queuePairs(t *testing.T, device int) int {
	t.Helper()
	const config = 7 // vfio's number of the region with the PCI configuration
	read := func(region, offset, size int) int {
		t.Helper()
		b := make([]byte, 4)
		if n, err := unix.Pread(device, b[:size], int64(region)<<40+int64(offset)); n != size || err != nil {
			t.Fatalf("region %d at %#x: %d bytes, %v", region, offset, n, err)
		}
		return int(binary.LittleEndian.Uint32(b))
	}
	command := []byte{byte(read(config, 4, 1)) | 2} // memory space on
	if _, err := unix.Pwrite(device, command, config<<40+4); err != nil {
		t.Fatal(err)
	}
	for at := read(config, 0x34, 1); at != 0; at = read(config, at+1, 1) {
		if read(config, at, 1) == 9 && read(config, at+3, 1) == 4 { // vendor's capability; device configuration
			return read(read(config, at+4, 1), read(config, at+8, 4)+8, 2)
		}
	}
	t.Fatal("the card has no device configuration")
	return 0
}
