package ring

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// childMode, in the environment, turns the test binary into the other process.
// The shared memory is its file descriptor 3.
const childMode = "PENSTOCK_RING_TEST_CHILD"

// Both processes lay two rings out in the memory: one there, one back.
const (
	testMessages = 256
	halfSize     = 64 << 10 // of the memory; each ring takes less
)

func TestMain(m *testing.M) {
	mode := os.Getenv(childMode)
	if mode == "" {
		os.Exit(m.Run())
	}
	if err := child(mode); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}

// sharedMemory maps a new memfd and returns the mapping and the file.
func sharedMemory(t *testing.T) ([]byte, *os.File) {
	t.Helper()
	fd, err := sys.MemfdCreate("ring-test", 2*halfSize, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "ring-test")
	mem, err := sys.Mmap(fd, 0, 2*halfSize, sys.ProtRead|sys.ProtWrite, sys.MapShared)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sys.Munmap(mem); err != nil {
			t.Error(err)
		}
		f.Close()
	})
	return mem, f
}

// startChild runs this binary as the other process. stop ends it through its
// standard input and returns what it said.
func startChild(t *testing.T, mode string, f *os.File) (cmd *exec.Cmd, stop func() error) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(exe)
	cmd.Env = append(os.Environ(), childMode+"="+mode)
	cmd.ExtraFiles = []*os.File{f}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	return cmd, func() error {
		in.Close()
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("child: %w: %s", err, out.Bytes())
		}
		return nil
	}
}

// child echoes, or scribbles, until its standard input is closed.
func child(mode string) error {
	mem, err := sys.Mmap(3, 0, 2*halfSize, sys.ProtRead|sys.ProtWrite, sys.MapShared)
	if err != nil {
		return err
	}
	defer sys.Munmap(mem)
	var quit atomic.Bool
	go func() {
		io.Copy(io.Discard, os.Stdin)
		quit.Store(true)
	}()
	in, out := mem[:halfSize], mem[halfSize:]
	switch mode {
	case "messages":
		r, err := NewMessagesReader(in[:MessagesSize(testMessages)])
		if err != nil {
			return err
		}
		w, err := NewMessagesWriter(out[:MessagesSize(testMessages)])
		if err != nil {
			return err
		}
		var m Message
		for !quit.Load() {
			if !r.Ready() {
				continue
			}
			if _, err := r.Get(&m); err != nil {
				return err
			}
			for !quit.Load() {
				ok, err := w.Put(m.Kind, m.Words[0], m.Words[1], m.Words[2], ^m.Words[3], m.Payload())
				if err != nil {
					return err
				}
				if ok {
					break
				}
			}
		}
	case "descriptors": // answers, until it is killed
		from, err := AttachDescriptors(in[:DescriptorsSize(testMessages)])
		if err != nil {
			return err
		}
		to, err := AttachDescriptors(out[:DescriptorsSize(testMessages)])
		if err != nil {
			return err
		}
		var ds [16]Desc
		for !quit.Load() {
			ticket, n, err := from.Claim(ds[:])
			if err != nil {
				return err
			}
			for i := range ds[:n] {
				ds[i].Value = ^ds[i].Tag
			}
			for done := 0; done < n && !quit.Load(); {
				k, err := to.Publish(ds[done:n])
				if err != nil {
					return err
				}
				done += k
			}
			from.Release(ticket, n)
		}
	case "scribble":
		scribble(mem, quit.Load)
	case "steps":
		return stepped(mem)
	}
	return nil
}

// spin calls step until it is done; it fails the test after a minute without.
func spin(t *testing.T, what string, step func() (done bool)) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for n := 0; !step(); n++ {
		if n&1023 == 1023 {
			runtime.Gosched()
			if time.Now().After(deadline) {
				t.Fatalf("%s: no end after a minute", what)
			}
		}
	}
}

// TestDescriptorsBetweenProcesses has another process attach and answer, kills it at any moment,
// recovers what it had, and goes on with another one: every descriptor is answered, in all at least
// once, and nothing is invented.
func TestDescriptorsBetweenProcesses(t *testing.T) {
	const total = 3000
	mem, f := sharedMemory(t)
	size := DescriptorsSize(testMessages)
	to, err := NewDescriptors(mem[:size], 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	from, err := NewDescriptors(mem[halfSize:][:size], 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var seen [total]int
	answers, next := 0, uint64(0)
	var lost []Desc // by the one that was killed
	for life := range 3 {
		cmd, stop := startChild(t, "descriptors", f)
		spin(t, "answers", func() bool {
			if len(lost) > 0 {
				n, _ := to.Publish(lost)
				lost = lost[n:]
			} else if next < total {
				if n, _ := to.Publish([]Desc{{Tag: next, Off: next, Len: 3}}); n == 1 {
					next++
				}
			}
			var got [16]Desc
			ticket, n, err := from.Claim(got[:])
			if err != nil {
				t.Fatal(err)
			}
			from.Release(ticket, n)
			for _, d := range got[:n] {
				if d.Flags&DescVoid != 0 { // it died with a claim
					continue
				}
				if d.Tag >= total || d.Value != ^d.Tag || d.Off != d.Tag || d.Len != 3 {
					t.Fatalf("an answer is %+v", d)
				}
				if seen[d.Tag]++; seen[d.Tag] == 1 {
					answers++
				}
			}
			return answers >= total*(life+1)/3
		})
		if life == 2 {
			if err := stop(); err != nil {
				t.Error(err)
			}
			break
		}
		cmd.Process.Kill()
		cmd.Wait()
		var ds [testMessages]Desc
		for n := to.Recover(ds[:]); n > 0; n = to.Recover(ds[:]) {
			lost = append(lost, ds[:n]...)
		}
		from.Recover(ds[:0])
	}
	for _, r := range []*Descriptors{to, from} {
		if err := r.Check(); err != nil {
			t.Error(err)
		}
	}
}

func TestMessagesBetweenProcesses(t *testing.T) {
	const total = 5_000
	mem, f := sharedMemory(t)
	w, err := NewMessagesWriter(mem[:MessagesSize(testMessages)])
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewMessagesReader(mem[halfSize:][:MessagesSize(testMessages)])
	if err != nil {
		t.Fatal(err)
	}
	_, stop := startChild(t, "messages", f)
	payload := make([]byte, MaxPayload)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	of := func(i uint64) []byte { return payload[i%13:][:i*31%(MaxPayload-13)] }
	var m Message
	put, got := uint64(0), uint64(0)
	spin(t, "messages there and back", func() bool {
		if put < total {
			ok, err := w.Put(uint8(put), put, put<<20, 3, ^put, of(put))
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				put++
			}
		}
		if r.Ready() {
			ok, err := r.Get(&m)
			if !ok || err != nil {
				t.Fatalf("ready, but %v, %v", ok, err)
			}
			if m.Kind != uint8(got) || m.Words != [4]uint64{got, got << 20, 3, got} ||
				!bytes.Equal(m.Payload(), of(got)) {
				t.Fatalf("message %d came back wrong: %+v", got, m)
			}
			got++
		}
		return got == total
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// TestPeerKilled kills the other process in the middle of traffic: both ends here
// go on to answer, "full" and "empty" at last, and never an error.
func TestPeerKilled(t *testing.T) {
	mem, f := sharedMemory(t)
	w, err := NewMessagesWriter(mem[:MessagesSize(testMessages)])
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewMessagesReader(mem[halfSize:][:MessagesSize(testMessages)])
	if err != nil {
		t.Fatal(err)
	}
	cmd, _ := startChild(t, "messages", f)
	payload := make([]byte, 200)
	var m Message
	for got, dead := 0, false; ; {
		ok, err := w.Put(1, 2, 3, 4, 5, payload)
		if err != nil {
			t.Fatal(err)
		}
		more, err := r.Get(&m)
		if err != nil {
			t.Fatal(err)
		}
		if more {
			got++
		}
		if got == 1000 && !dead {
			dead = true
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			cmd.Wait()
		}
		if dead && !ok && !more {
			break
		}
	}
}

// scribble writes over mem until stop: random words in random places, and the ones
// that reach deepest, which are neighbours of what is there.
func scribble(mem []byte, stop func() bool) {
	rnd := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	words := len(mem) / 8
	for !stop() {
		for range 64 {
			at := rnd.IntN(words)
			if rnd.IntN(2) == 0 {
				at = [...]int{0, 16, 16 + 8*rnd.IntN(32), 32}[rnd.IntN(4)] + halfSize/8*rnd.IntN(2)
			}
			p := wordAt(mem, 8*at)
			switch rnd.IntN(6) {
			case 0:
				p.Store(rnd.Uint64())
			case 1:
				p.Add(1)
			case 2:
				p.Add(uint64(rnd.IntN(256)) - 128)
			case 3:
				p.Add(1 << seqShift)
			case 4:
				p.Store(p.Load() ^ 1<<rnd.IntN(64))
			case 5:
				p.Store(rnd.Uint64N(1<<11)<<seqShift | rnd.Uint64N(1<<11)<<8)
			}
		}
		runtime.Gosched()
	}
}

// TestHostilePeer uses both sides while another process writes anything it
// likes over the whole memory: indices, commit words, payload. Every answer is in
// bounds, nothing faults or hangs, and what is noticed is ErrCorrupt.
func TestHostilePeer(t *testing.T) {
	for _, where := range []string{"thread", "process"} {
		t.Run(where, func(t *testing.T) {
			mem, f := sharedMemory(t)
			var finish func() error
			if where == "process" {
				_, finish = startChild(t, "scribble", f)
			} else {
				var quit atomic.Bool
				var wg sync.WaitGroup
				wg.Go(func() { scribble(mem, quit.Load) })
				finish = func() error { quit.Store(true); wg.Wait(); return nil }
				t.Cleanup(func() { finish() }) // before the memory is unmapped, also on failure
			}
			hostile(t, mem)
			if err := finish(); err != nil {
				t.Error(err)
			}
		})
	}
}

func hostile(t *testing.T, mem []byte) {
	messages := mem[halfSize:][:MessagesSize(testMessages)]
	payload := make([]byte, MaxPayload)
	var m Message
	var calls, corrupt [2]int
	sides := [2]func(turn int) error{}
	attach := [2]func(){
		func() {
			w, err := newMessagesWriter(messages, wordAt(messages, messagesHead).Load())
			if err != nil {
				t.Fatal(err)
			}
			sides[0] = func(turn int) error {
				_, err := w.Put(uint8(turn), 1, 2, 3, 4, payload[:turn*7%(MaxPayload+1)])
				return err
			}
		},
		func() {
			r, err := newMessagesReader(messages, wordAt(messages, messagesCells).Load()>>seqShift-1)
			if err != nil {
				t.Fatal(err)
			}
			sides[1] = func(turn int) error {
				r.Ready()
				ok, err := r.Get(&m)
				if ok && m.Len > MaxPayload {
					t.Fatalf("got a message of %d bytes", m.Len)
				}
				return err
			}
		},
	}
	for _, a := range attach {
		a()
	}
	deadline := time.Now().Add(time.Minute)
	enough := func() bool {
		for i := range calls {
			if calls[i]-corrupt[i] < 1000 || corrupt[i] < 100 {
				return false
			}
		}
		return true
	}
	for turn := 0; !enough(); turn++ {
		for i, side := range sides {
			calls[i]++
			if err := side(turn); err != nil {
				if !errors.Is(err, ErrCorrupt) {
					t.Fatalf("side %d: %v", i, err)
				}
				if err := side(turn); !errors.Is(err, ErrCorrupt) {
					t.Fatalf("side %d: a corrupt ring came back to life: %v", i, err)
				}
				corrupt[i]++
				attach[i]()
			}
		}
		if turn&1023 == 0 && time.Now().After(deadline) {
			t.Fatalf("after a minute: %v calls, %v noticed corruption: too little to judge", calls, corrupt)
		}
	}
	t.Logf("calls %v, noticed %v", calls, corrupt)
}
