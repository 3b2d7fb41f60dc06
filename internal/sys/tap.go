package sys

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// TapQueues makes a tap device with several queues (man 7 netdevice, kernel: networking/tuntap.rst)
// in a network namespace of its own, and returns a file for each queue, which belong to the caller.
// Frames carry a virtio header. The device and the namespace are gone when the last file is closed.
// It takes CAP_SYS_ADMIN and CAP_NET_ADMIN.
func TapQueues(name string, queues int) ([]*os.File, error) {
	type result struct {
		files []*os.File
		err   error
	}
	c := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is in the new namespace and ends here
		files, err := tapQueues(name, queues)
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			files = nil
		}
		c <- result{files, err}
	}()
	r := <-c
	return r.files, r.err
}

func tapQueues(name string, queues int) (files []*os.File, err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, callError("unshare", "CLONE_NEWNET", err)
	}
	for i := range queues {
		f, err := tap(name, unix.IFF_MULTI_QUEUE, fmt.Sprintf("%s queue %d", name, i))
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return files, callError("socket", "AF_INET", err)
	}
	defer unix.Close(s)
	req, err := unix.NewIfreq(name)
	if err != nil {
		return files, callError("ioctl", "SIOCSIFFLAGS "+name, err)
	}
	req.SetUint16(unix.IFF_UP)
	return files, callError("ioctl", "SIOCSIFFLAGS "+name, unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, req))
}

// Tap makes a tap device in the network namespace of the calling thread. The file belongs to the
// caller, and the device is gone when it is closed. A frame has a header of TapHeader bytes, a
// struct virtio_net_hdr in native byte order. The kernel leaves checksums to the reader of the
// file, and the segmentation of TCP over IPv4.
func Tap(name string) (*os.File, error) {
	f, err := tap(name, 0, name)
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err == nil {
		cerr := raw.Control(func(fd uintptr) {
			err = callError("ioctl", "TUNSETOFFLOAD "+name,
				unix.IoctlSetInt(int(fd), unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4))
		})
		err = errors.Join(err, cerr)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// TapHeader is the length of what stands before a frame of a Tap.
const TapHeader = 10

// tap opens one queue. The file exists when the queue does: what polls it before hears nothing of
// it.
func tap(name string, flags uint16, shown string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, callError("open", "/dev/net/tun", err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | flags)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		unix.Close(fd)
		return nil, callError("ioctl", "TUNSETIFF "+name, err)
	}
	return os.NewFile(uintptr(fd), shown), nil
}
