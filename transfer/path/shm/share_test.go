package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// borrow borrows on p, polling both ends until the export is attached.
func (u *duo) borrow(k path.Key, off, n uint64) (path.View, error) {
	u.t.Helper()
	for start := time.Now(); ; {
		v, err := u.p.Borrow(k, off, n)
		if !errors.Is(err, path.ErrFull) || time.Since(start) > time.Minute {
			return v, err
		}
		u.p.Poll(u.buf[:])
		u.q.Poll(u.buf[:])
	}
}

// writes reports whether a write to b goes through.
func writes(b []byte) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { recover() }()
	b[0] = 1
	return true
}

func TestBorrow(t *testing.T) {
	u := newDuo(t, Driver{}, 0)
	r := u.region(1 << 20)
	k := export(t, u.qx, r, path.Read|path.Write).Key()
	ro := export(t, u.qx, r, path.Read).Key()
	wo := export(t, u.qx, r, path.Write).Key()
	b := r.All().Bytes()
	b[5000] = 77
	for _, k := range []path.Key{k, ro} {
		v, err := u.borrow(k, 5000, 10)
		if err != nil {
			t.Fatal(err)
		}
		if len(v.Bytes) != 10 || cap(v.Bytes) != 10 || v.Bytes[0] != 77 {
			t.Fatalf("view %v, capacity %d", v.Bytes, cap(v.Bytes))
		}
		b[5001]++
		if v.Bytes[1] != b[5001] {
			t.Error("the view does not follow the memory")
		}
		if writes(v.Bytes) {
			t.Error("a write through a view went through")
		}
		v.Release()
	}
	if _, err := u.borrow(wo, 0, 1); !errors.Is(err, path.ErrRights) {
		t.Errorf("borrow of a write-only export: %v", err)
	}
	for _, c := range [][2]uint64{{1 << 20, 1}, {0, 1<<20 + 1}, {1 << 63, 1 << 63}, {5, ^uint64(0)}} {
		if _, err := u.borrow(k, c[0], c[1]); !errors.Is(err, path.ErrBounds) {
			t.Errorf("borrow of %d at %d: %v", c[1], c[0], err)
		}
	}
	if _, err := u.borrow(path.Key{Index: 9}, 0, 1); !errors.Is(err, path.ErrKey) {
		t.Errorf("borrow of a forged key: %v", err)
	}
	if _, err := u.borrow(k, 1<<20, 0); err != nil {
		t.Errorf("borrow of nothing at the end: %v", err)
	}
	if n := testing.AllocsPerRun(1000, func() {
		v, err := u.p.Borrow(k, 0, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		v.Release()
	}); n != 0 {
		t.Errorf("%v allocations per borrow", n)
	}
}

// TestViewReleasedTwice: a view that is released again, by a copy of it as well, takes no other
// reader's memory away.
func TestViewReleasedTwice(t *testing.T) {
	u := newDuo(t, Driver{}, 0)
	r := u.region(1 << 16)
	r.All().Bytes()[0] = 42
	k := export(t, u.qx, r, path.Read).Key()
	v, err := u.borrow(k, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	other, err := u.borrow(k, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	again := v
	if err := v.Release(); err != nil {
		t.Error(err)
	}
	for range 3 {
		if err := again.Release(); !errors.Is(err, mem.ErrReleased) {
			t.Errorf("a second release: %v", err)
		}
	}
	u.p.Close() // the mapping stays for the view that is left
	if other.Bytes[0] != 42 {
		t.Error("the other view shows something else")
	}
	if err := other.Release(); err != nil {
		t.Error(err)
	}
	if err := other.Release(); !errors.Is(err, mem.ErrReleased) {
		t.Errorf("a second release of what is unmapped: %v", err)
	}
	if err := (path.View{}).Release(); err != nil {
		t.Error(err)
	}
}

// A read-only export is handed over so that it cannot be mapped for writing at all.
func TestReadOnlyExport(t *testing.T) {
	u := newDuo(t, Driver{}, 0)
	k := export(t, u.qx, u.region(4096), path.Read).Key()
	local := u.region(4096)
	if e := u.do(put(local.All(), k, 0)); !errors.Is(e.Err, path.ErrRights) {
		t.Errorf("put: %v", e.Err)
	}
	// The same by hand: what comes over the socket.
	var b [packetSize]byte
	(&packet{kind: packetAttach, id: 1, key: k}).encode(&b)
	sys.SendPacket(u.p.sock, b[:], -1)
	u.q.receive()
	var fds [sys.MaxPacketFDs]int
	for {
		n, nfds, _, e := sys.RecvPacket(u.p.sock, b[:], &fds)
		if e != 0 {
			t.Fatal(e)
		}
		if k, err := parsePacket(b[:n]); err != nil || k.kind != packetAttached || nfds != 1 {
			continue
		}
		break
	}
	defer sys.Close(fds[0])
	if m, err := sys.Mmap(fds[0], 0, 4096, sys.ProtRead|sys.ProtWrite, sys.MapShared); err == nil {
		sys.Munmap(m)
		t.Error("the descriptor of a read-only export can be mapped for writing")
	}
}

func TestFenceWaitsForViews(t *testing.T) {
	u := newDuo(t, Driver{}, 0)
	r, local := u.region(1<<16), u.region(1<<16)
	e := export(t, u.qx, r, path.Read|path.Write)
	other := export(t, u.qx, u.region(4096), path.Read)
	v, err := u.borrow(e.Key(), 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.q.Post([]path.Op{{Kind: path.Fence, Key: e.Key()}}); err == nil {
		t.Error("fence of an export that is not revoked was accepted")
	}
	u.qx.Revoke(e)
	u.qx.Revoke(other)
	if _, err := u.q.Post([]path.Op{{Kind: path.Fence, Key: other.Key(), Token: 2},
		{Kind: path.Fence, Key: e.Key(), Token: 1}, {Kind: path.Fence, Key: e.Key(), Token: 3}}); err != nil {
		t.Fatal(err)
	}
	var events [8]path.Event
	step := func() (ends []uint64) {
		for range 2000 {
			u.p.Poll(u.buf[:])
			for _, e := range events[:u.q.Poll(events[:])] {
				if e.Kind == path.EventDone && e.Err == nil {
					ends = append(ends, e.Token)
				}
			}
		}
		return ends
	}
	if ends := step(); fmt.Sprint(ends) != "[2]" {
		t.Fatalf("ended fences %v, expected only that of the export that the peer never used", ends)
	}
	if got := u.q.Exposed(); len(got) != 1 || got[0] != e.Key() {
		t.Errorf("exposed %v", got)
	}
	if e := u.do(put(local.All(), e.Key(), 0)); !errors.Is(e.Err, path.ErrRevoked) {
		t.Errorf("put after the fence began: %v", e.Err)
	}
	if _, err := u.borrow(e.Key(), 0, 1); !errors.Is(err, path.ErrRevoked) {
		t.Errorf("borrow after the fence began: %v", err)
	}
	r.All().Bytes()[3] = 9
	if v.Bytes[3] != 9 {
		t.Error("the view is gone before its release")
	}
	if u.p.Arm() {
		t.Error("p has something to do")
	}
	v.Release() // p sleeps: the release must wake it
	if i, _ := sys.PollIn(5000, u.p.FD()); i != 0 {
		t.Fatal("the release of the last view does not wake the path")
	}
	if ends := step(); fmt.Sprint(ends) != "[1 3]" {
		t.Errorf("ended fences %v after the release, expected 1 and 3", ends)
	}
	if got := u.q.Exposed(); len(got) != 0 {
		t.Errorf("exposed %v after the fence", got)
	}
	u.qx.Retire(e)
}

func TestViewOutlivesThePath(t *testing.T) {
	maps := count(t, "/proc/self/maps")
	u := newDuo(t, Driver{}, 0)
	r := u.region(1 << 16)
	e := export(t, u.qx, r, path.Read|path.Write)
	v, err := u.borrow(e.Key(), 0, 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	u.p.Close()
	u.q.Close()
	u.qx.Revoke(e)
	u.qx.Retire(e)
	r.Close()
	for _, b := range v.Bytes {
		if b != 0 {
			t.Fatal("wrong byte")
		}
	}
	v.Release()
	if n := count(t, "/proc/self/maps"); n > maps+2 {
		t.Errorf("%d mappings, %d before", n, maps)
	}
}

// Exposed tells when memory is safe to use again although the path is gone.
func TestExposedAfterClose(t *testing.T) {
	for _, how := range []string{"polls", "dies", "closes", "forgotten"} {
		t.Run(how, func(t *testing.T) {
			u := newDuo(t, Driver{}, 0)
			k := export(t, u.qx, u.region(4096), path.Read|path.Write).Key()
			if e := u.do(put(u.region(4096).All(), k, 0)); e.Err != nil {
				t.Fatal(e.Err)
			}
			u.q.Close()
			if got := u.q.Exposed(); len(got) != 1 || got[0] != k {
				t.Fatalf("exposed %v while the peer has it mapped", got)
			}
			switch how {
			case "polls":
				if err := u.ends(); !errors.Is(err, path.ErrDown) || errors.Is(err, path.ErrProtocol) {
					t.Errorf("down with %v", err)
				}
			case "dies":
				u.p.closeSocket()
			case "closes":
				u.p.Close()
			case "forgotten":
				u.p.Forget() // is not closed
				if u.p.sock < 0 {
					t.Error("a path that is open lost its socket")
				}
				u.q.Forget()
				u.q.Forget()
			}
			if got := u.q.Exposed(); (len(got) != 0) != (how == "forgotten") {
				t.Errorf("exposed %v", got)
			}
			if u.q.sock >= 0 {
				t.Error("the socket is still open")
			}
		})
	}
}

// More exports than can be attached at once: the oldest give way, views and running operations do
// not.
func TestEviction(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace, "thousands of mappings")
	u := newDuo(t, Driver{}, 0)
	local := u.region(4096)
	n := maxAttachments + 50
	keys := make([]path.Key, n)
	for i := range keys {
		keys[i] = export(t, u.qx, u.region(4096), path.Write).Key()
	}
	view := export(t, u.qx, u.region(4096), path.Read).Key()
	v, err := u.borrow(view, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if e := u.do(put(mem.Span{Region: local, Len: 8}, k, 0)); e.Err != nil {
			t.Fatal(e.Err)
		}
	}
	for range 2000 {
		u.q.Poll(u.buf[:])
	}
	if n := len(u.p.atts); n > maxAttachments || n < maxAttachments-evictAtOnce ||
		len(u.q.granted) > maxAttachments+maxAsked {
		t.Errorf("%d attached, %d granted, expected %d", len(u.p.atts), len(u.q.granted), maxAttachments)
	}
	if u.p.atts[view] == nil {
		t.Error("an export with a view was given up")
	}
	v.Release()
	// One operation that needs more than all of them.
	op := path.Op{Kind: path.Put}
	for _, k := range keys {
		op.Copies = append(op.Copies, path.Copy{Local: mem.Span{Region: local, Len: 8}, Key: k})
	}
	if e := u.do(op); !errors.Is(e.Err, path.ErrUnreachable) {
		t.Errorf("an operation on %d exports: %v", n, e.Err)
	}
	op.Copies = op.Copies[:maxAttachments-10]
	if e := u.do(op); e.Err != nil {
		t.Error(e.Err)
	}
}

func TestHelpedPut(t *testing.T) {
	u := newDuo(t, Driver{}, 0)
	if !u.p.helps {
		testenv.Missing(t, "two processors: one helps the other", fmt.Errorf("there is %d", runtime.NumCPU()))
	}
	const n = helpBytes + 3*chunkBytes + 12345
	local, remote := u.region(n+5000), u.region(n+5000)
	src := local.All().Bytes()
	for i := range src {
		src[i] = byte(i ^ i>>8 ^ i>>17)
	}
	k := export(t, u.qx, remote, path.Read|path.Write).Key()
	for round := range 3 {
		clear(remote.All().Bytes())
		if e := u.do(put(mem.Span{Region: local, Off: 1234, Len: n}, k, 777)); e.Err != nil || e.Bytes != n {
			t.Fatalf("%+v", e)
		}
		dst := remote.All().Bytes()
		if !bytes.Equal(dst[777:777+n], src[1234:1234+n]) {
			t.Fatal("wrong bytes")
		}
		if len(bytes.Trim(dst[:777], "\x00"))+len(bytes.Trim(dst[777+n:], "\x00")) != 0 {
			t.Fatal("bytes outside were written")
		}
		if h, placed := u.p.Stats().HelpedBytes, u.q.Stats().BytesPlaced; h != placed || h == 0 ||
			h >= uint64(n*(round+1)) {
			t.Fatalf("helped with %d bytes, the helper says %d", h, placed)
		}
	}
	// The peer's hold of a region ends with the region.
	if len(u.q.lent) != 1 {
		t.Fatalf("%d regions lent", len(u.q.lent))
	}
	local.Close()
	u.p.Arm()
	u.q.receive()
	if len(u.q.lent) != 0 || len(u.p.regions) != 0 {
		t.Errorf("%d regions lent after they were closed", len(u.q.lent))
	}
	// More regions than may be lent.
	for range maxRegions + 2 {
		local := u.region(helpBytes)
		if e := u.do(put(local.All(), k, 0)); e.Err != nil {
			t.Fatal(e.Err)
		}
	}
	if len(u.q.lent) > maxRegions {
		t.Errorf("%d regions lent, at most %d agreed", len(u.q.lent), maxRegions)
	}
}

func TestLeaks(t *testing.T) {
	round := func() {
		u := newDuo(t, Driver{}, 16)
		e := export(t, u.qx, u.region(helpBytes), path.Read|path.Write)
		local := u.region(helpBytes)
		if e := u.do(put(local.All(), e.Key(), 0)); e.Err != nil {
			t.Fatal(e.Err)
		}
		v, err := u.borrow(e.Key(), 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		u.p.Close()
		v.Release()
		u.q.Close()
		u.p.Exposed()
		u.q.Exposed()
		u.qx.Revoke(e)
		u.qx.Retire(e)
		local.Close()
		e.Span().Region.Close()
	}
	round()
	fds, maps := count(t, "/proc/self/fd"), count(t, "/proc/self/maps")
	for range 20 {
		round()
	}
	if n := count(t, "/proc/self/fd"); n > fds {
		t.Errorf("%d descriptors, %d before 20 paths", n, fds)
	}
	if n := count(t, "/proc/self/maps"); n > maps+4 { // the runtime may have grown
		t.Errorf("%d mappings, %d before 20 paths", n, maps)
	}
}

// Every message finds the other side asleep, or going to sleep.
func TestParkedPingPong(t *testing.T) {
	rounds := 100_000
	if testing.Short() {
		rounds = 5_000
	}
	u := newDuo(t, Driver{}, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	side := func(p *Path, first bool) error {
		w, err := path.NewWaiter()
		if err != nil {
			return err
		}
		defer w.Close()
		var events [4]path.Event
		op := []path.Op{{Kind: path.Notify}}
		if first {
			p.Post(op)
		}
		for got := 0; got < rounds; {
			n, err := w.Wait(ctx, p, events[:], 0)
			if err != nil {
				return fmt.Errorf("round %d: %w", got, err)
			}
			for _, e := range events[:n] {
				if e.Kind == path.EventDown {
					return e.Err
				}
				if e.Kind != path.EventNotify {
					continue
				}
				if e.Imm != uint64(got) {
					return fmt.Errorf("round %d: notification %d", got, e.Imm)
				}
				got++
				op[0].Imm = uint64(got)
				if first {
					op[0].Imm = uint64(got)
				} else {
					op[0].Imm = e.Imm
				}
				if got < rounds || !first {
					if _, err := p.Post(op); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	ends := make(chan error, 1)
	go func() { ends <- side(u.q, false) }()
	if err := side(u.p, true); err != nil {
		t.Error(err)
	}
	if err := <-ends; err != nil {
		t.Error(err)
	}
	if s := u.p.Stats(); s.Wakeups == 0 {
		t.Error("nobody was ever woken")
	} else {
		t.Logf("%d rounds, %d wake-ups", rounds, s.Wakeups)
	}
}

// A process of another user is refused on either side.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Missing(t, "root, who can start a process of another user", fmt.Errorf("the user is %d", os.Geteuid()))
	}
	dir, err := os.MkdirTemp("", "shm")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755)
	exe := filepath.Join(dir, "test")
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(exe, b, 0o755); err != nil {
		t.Fatal(err)
	}
	foreign := func(args string) (*exec.Cmd, io.ReadCloser) {
		cmd := exec.Command(exe)
		cmd.Dir = "/"
		cmd.Env = []string{childEnv + "=" + args}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd, out
	}
	t.Run("Dials", func(t *testing.T) {
		l, err := Driver{}.Listen()
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		token := newToken()
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error, 1)
		go func() {
			_, err := l.Accept(ctx, token, setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)})
			got <- err
		}()
		_, out := foreign(fmt.Sprintf("foreign-dials %s %x", l.Addr(), token[:]))
		answer, _ := io.ReadAll(out)
		if !strings.Contains(string(answer), "status 2") || !strings.Contains(string(answer), "65534") {
			t.Errorf("the foreign process was answered %q, expected a refusal that names its user", answer)
		}
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("Accept: %v: the foreign process with the right token got through", err)
		}
	})
	t.Run("Listens", func(t *testing.T) {
		name := fmt.Sprintf("@penstock-shm-test-%x", newToken())
		_, out := foreign("foreign-listens " + name + " 00")
		if _, err := out.Read(make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		_, err := Driver{}.Dial(t.Context(), setup.Offer{Addr: name, Token: newToken()},
			setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)})
		if !errors.Is(err, path.ErrUnavailable) || !strings.Contains(err.Error(), "65534") {
			t.Errorf("dial of another user's listener: %v", err)
		}
		if rest, _ := io.ReadAll(out); strings.Contains(string(rest), "token") {
			t.Errorf("the foreign process was shown the token: %q", rest)
		}
	})
}

// foreign processes are children that use the socket by hand.
func foreignMain(args []string) error {
	addr := &net.UnixAddr{Name: args[1], Net: "unixpacket"}
	if args[0] == "foreign-dials" {
		c, err := net.DialUnix("unixpacket", nil, addr)
		if err != nil {
			return err
		}
		var token setup.Token
		fmt.Sscanf(args[2], "%x", &token)
		c.Write(hello{token: token, version: Version, window: 8}.append(nil))
		b, _, err := readPacket(c)
		if err != nil {
			return err
		}
		w, err := parseWelcome(b)
		fmt.Println("status", w.status, w.words, err)
		return nil
	}
	l, err := net.ListenUnix("unixpacket", addr)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	c, err := l.AcceptUnix()
	if err != nil {
		return err
	}
	c.SetDeadline(time.Now().Add(time.Minute))
	if _, _, err := readPacket(c); err == nil {
		fmt.Println("got the token")
	}
	return nil
}

func TestReaches(t *testing.T) {
	u := newDuo(t, Driver{}, 0)
	r := u.region(1 << 16)
	whole := export(t, u.qx, r, path.Read)
	if err := u.p.Reaches(whole.Desc()); err != nil {
		t.Error(err)
	}
	half, err := r.Span(0, 1<<15)
	if err != nil {
		t.Fatal(err)
	}
	part, err := u.qx.Add(half, path.Read)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.p.Reaches(part.Desc()); !errors.Is(err, path.ErrUnreachable) {
		t.Errorf("a part of a region: %v", err)
	}
	// A peer that tries all the same is refused by the owner.
	op := path.Op{Kind: path.Get, Copies: []path.Copy{{Local: mem.Span{Region: u.region(4096), Len: 8},
		Key: part.Key()}}}
	if e := u.do(op); !errors.Is(e.Err, path.ErrUnreachable) {
		t.Errorf("get from a part of a region: %v", e.Err)
	}
	if n := u.q.Stats().Rejected; n != 1 {
		t.Errorf("%d references rejected, expected 1", n)
	}
}

// Small puts and gets overtake a large one that is being copied, all bytes are right, and
// notifications keep their order.
func TestSmallOvertakesLarge(t *testing.T) {
	for name, d := range map[string]Driver{"Helped": {}, "Alone": {NoHelp: true}} {
		t.Run(name, func(t *testing.T) {
			u := newDuo(t, d, 0)
			const large, small = 4 * helpBytes, 4096
			local, remote := u.region(large+2*small), u.region(large+2*small)
			src, dst := local.All().Bytes(), remote.All().Bytes()
			for i := range src {
				src[i] = byte(i ^ i>>8 ^ i>>17)
			}
			k := export(t, u.qx, remote, path.Read|path.Write).Key()
			if e := u.do(put(mem.Span{Region: local, Len: 64}, k, 0)); e.Err != nil { // it is attached now
				t.Fatal(e.Err)
			}
			ops := []path.Op{
				put(mem.Span{Region: local, Len: large}, k, 0),
				{Kind: path.Notify, Imm: 1, Token: 11},
				put(mem.Span{Region: local, Off: large, Len: small}, k, large),
				{Kind: path.Get, Token: 13, Copies: []path.Copy{{Local: mem.Span{Region: local, Off: large + small, Len: small}, Key: k, RemoteOff: large}}},
				// beyond the export: it fails in its turn
				put(mem.Span{Region: local, Off: large, Len: small}, k, large+2*small),
				{Kind: path.Notify, Imm: 2, Token: 15},
			}
			ops[0].Token, ops[2].Token, ops[4].Token = 10, 12, 14
			ops[0].Notify, ops[0].Imm = true, 7
			ops[2].Notify, ops[2].Imm = true, 8
			if n, err := u.p.Post(ops[:1]); n != 1 {
				t.Fatal(err)
			}
			u.p.run(1) // the first byte: it is under way
			if n, err := u.p.Post(ops[1:]); n != len(ops)-1 {
				t.Fatal(err)
			}
			if !bytes.Equal(dst[large:large+small], src[large:large+small]) ||
				!bytes.Equal(src[large+small:], src[large:large+small]) {
				t.Error("small operations behind a large one were not done by Post")
			}
			var tokens, imms []uint64
			for start := time.Now(); len(tokens) < len(ops) || len(imms) < 4; {
				if time.Since(start) > time.Minute {
					t.Fatalf("done %v, heard %v", tokens, imms)
				}
				for _, e := range u.buf[:u.p.Poll(u.buf[:])] {
					if (e.Err != nil) != (e.Token == 14) {
						t.Errorf("operation %d ended with %v", e.Token, e.Err)
					}
					tokens = append(tokens, e.Token)
				}
				for _, e := range u.buf[:u.q.Poll(u.buf[:])] {
					imms = append(imms, e.Imm)
				}
			}
			if want := []uint64{12, 13, 10, 11, 14, 15}; !slices.Equal(tokens, want) {
				t.Errorf("done in the order %v, expected %v", tokens, want)
			}
			if want := []uint64{8, 7, 1, 2}; !slices.Equal(imms, want) {
				t.Errorf("heard in the order %v, expected %v", imms, want)
			}
			if !bytes.Equal(dst[:large], src[:large]) {
				t.Error("the large one has wrong bytes")
			}
			if s := u.p.Stats(); s.OpsDone != 6 || s.OpsFailed != 1 || s.NotifySent != 4 {
				t.Errorf("%+v", s)
			}
		})
	}
}
