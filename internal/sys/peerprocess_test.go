package sys

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

const connectTo = "PENSTOCK_SYS_CONNECT" // the path of a socket that a child connects its descriptor 3 to

// TestPeerProcess: the descriptor of a peer is that of the process that connected, as long as that
// runs, and never of one that has its number later.
func TestPeerProcess(t *testing.T) {
	if to := os.Getenv(connectTo); to != "" {
		if err := unix.Connect(3, &unix.SockaddrUnix{Name: to}); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("connected")
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	// connected is the accepted end of a connection that a child made; the other end stays open
	// here after end, which ends the child.
	connected := func() (fd, pid int, end func()) {
		at := filepath.Join(t.TempDir(), "s")
		l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = errors.Join(unix.Bind(l, &unix.SockaddrUnix{Name: at}), unix.Listen(l, 1))
		}
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(l)
		s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		far := os.NewFile(uintptr(s), "socket")
		t.Cleanup(func() { far.Close() })
		c := exec.Command(os.Args[0], "-test.run=^TestPeerProcess$")
		c.Env, c.ExtraFiles = append(os.Environ(), connectTo+"="+at), []*os.File{far}
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		var said string
		fmt.Fscanln(out, &said)
		if said != "connected" {
			t.Fatal(said)
		}
		if fd, _, err = unix.Accept4(l, unix.SOCK_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		ended := false
		end = func() {
			if !ended {
				ended = true
				in.Close()
				c.Wait()
			}
		}
		t.Cleanup(end)
		return fd, c.Process.Pid, end
	}
	runs := func(process int) bool {
		i, err := PollIn(0, process)
		if err != nil {
			t.Fatal(err)
		}
		return i < 0
	}
	fd, pid, end := connected()
	got, process, err := PeerProcess(fd)
	if err != nil || got != pid || !runs(process) {
		t.Fatalf("process %d, %v, expected %d", got, err, pid)
	}
	defer unix.Close(process)
	byNumber, err := processByNumber(fd, pid)
	if err != nil || !runs(byNumber) {
		t.Fatal(err)
	}
	defer unix.Close(byNumber)
	end()
	// Another process gets the number, where this one may choose it.
	if os.WriteFile("/proc/sys/kernel/ns_last_pid", fmt.Append(nil, pid-1), 0) == nil {
		c := exec.Command("sleep", "1000")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer c.Wait()
		defer c.Process.Kill()
		t.Logf("process %d ended, %d was started", pid, c.Process.Pid)
	}
	if runs(process) || runs(byNumber) {
		t.Error("a descriptor of a process that has ended reports one that runs")
	}
	switch _, late, err := PeerProcess(fd); {
	case err == nil:
		defer unix.Close(late)
		if runs(late) {
			t.Error("a process that did not connect is taken for the one that did")
		}
	case !errors.Is(err, ESRCH) && !errors.Is(err, unix.ENOPROTOOPT):
		t.Error(err)
	}
	// By the number alone, the connection has to be open.
	fd, pid, end = connected()
	end()
	if p, err := processByNumber(fd, os.Getpid()); err != nil { // this process holds the other end
		t.Error(err)
	} else {
		unix.Close(p)
	}
	if p, err := processByNumber(fd, pid); !errors.Is(err, ESRCH) {
		t.Errorf("%d, %v, expected %v", p, err, ESRCH)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	unix.Close(pair[1])
	if p, err := processByNumber(pair[0], os.Getpid()); !errors.Is(err, ESRCH) {
		t.Errorf("%d, %v, expected %v", p, err, ESRCH)
	}
}
