package sys

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// TapQueues makes a tap device with several queues (man 7 netdevice, kernel: networking/tuntap.rst) in a network namespace of
// its own, and returns a file for each queue, which belong to the caller. Frames carry a virtio header. The device and the
// namespace are gone when the last file is closed. It takes CAP_SYS_ADMIN and CAP_NET_ADMIN.
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
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return files, callError("open", "/dev/net/tun", err)
		}
		files = append(files, os.NewFile(uintptr(fd), fmt.Sprintf("%s queue %d", name, i)))
		req, err := unix.NewIfreq(name)
		if err != nil {
			return files, callError("ioctl", "TUNSETIFF "+name, err)
		}
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
			return files, callError("ioctl", "TUNSETIFF "+name, err)
		}
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
