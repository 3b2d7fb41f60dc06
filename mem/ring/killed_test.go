package ring

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// Words in the second half of the shared memory, for the process that is stepped and the one that
// steps it.
const (
	stepThread = halfSize      // its thread
	stepGo     = halfSize + 8  // 1: it may begin
	stepOver   = halfSize + 16 // 1: it has ended
	stepSlots  = 4
)

// stepped is the process that the test steps: every call of a ring of descriptors, over more than a
// lap, with tickets that no call puts or releases.
func stepped(mem []byte) error {
	r, err := AttachDescriptors(mem[:DescriptorsSize(stepSlots)])
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	wordAt(mem, stepThread).Store(uint64(syscall.Gettid()))
	for wordAt(mem, stepGo).Load() == 0 {
	}
	var ds, dst [stepSlots]Desc
	var errs [8]error
	tag := uint64(0)
	publish := func(n int) (err error) {
		for i := range ds[:n] {
			tag++
			ds[i] = Desc{Off: tag, Len: 1, Tag: tag}
		}
		_, err = r.Publish(ds[:n])
		return err
	}
	errs[0] = publish(4)
	t, n, err := r.Claim(dst[:3])
	r.Release(t+1, n-1)
	errs[1] = err
	_, errs[2] = r.DropOldest(dst[:1])
	r.Release(t, 1)
	errs[3] = publish(2)
	_, _, errs[4] = r.Claim(dst[:1])
	_, _, errs[5] = r.Reserve(1)
	errs[6] = publish(1)
	for r.Recover(dst[:1]) > 0 {
	}
	t, n, errs[7] = r.Claim(dst[:])
	r.Release(t, n)
	wordAt(mem, stepOver).Store(1)
	return errors.Join(append(errs[:], r.Check())...)
}

// TestDescriptorsKilledAnywhere steps another process through the calls of a ring, one instruction
// at a time. What it has stored is what it leaves behind if it is killed there: from each such
// memory Recover makes a ring whose counts add up, with every descriptor that was published and not
// released, once.
func TestDescriptorsKilledAnywhere(t *testing.T) {
	mem, f := sharedMemory(t)
	shared := mem[:DescriptorsSize(stepSlots)]
	if _, err := NewDescriptors(shared, 1<<20); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // the thread that traces is the one that waits
	defer runtime.UnlockOSThread()
	t.Setenv("GODEBUG", "asyncpreemptoff=1")
	t.Setenv("GOGC", "off")
	_, stop := startChild(t, "steps", f)
	spin(t, "the thread of the child", func() bool { return wordAt(mem, stepThread).Load() != 0 })
	thread := int(wordAt(mem, stepThread).Load())
	if err := syscall.PtraceAttach(thread); err != nil {
		testenv.Missing(t, "ptrace", err)
	}
	var steps, states int
	last := slices.Clone(shared)
	for {
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(thread, &status, syscall.WALL, nil); err != nil || !status.Stopped() {
			t.Fatalf("the child has ended after %d steps: %#x, %v", steps, status, err)
		}
		if !bytes.Equal(last, shared) {
			copy(last, shared)
			states++
			afterKill(t, last, steps)
		}
		if wordAt(mem, stepOver).Load() != 0 {
			break
		}
		wordAt(mem, stepGo).Store(1)
		steps++
		if err := syscall.PtraceSingleStep(thread); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.PtraceDetach(thread); err != nil {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	t.Logf("%d steps, %d states of the memory", steps, states)
	if states < 40 {
		t.Errorf("%d states of the memory in %d steps: the calls store more often than that", states, steps)
	}
}

// afterKill recovers a copy of the memory that a process left behind after a number of steps.
func afterKill(t *testing.T, left []byte, steps int) {
	t.Helper()
	for room := range 3 {
		mem := alignedBytes(len(left))
		copy(mem, left)
		r, err := AttachDescriptors(mem)
		if err != nil {
			t.Fatal(err)
		}
		var want, got []uint64 // tags of what was published and is not released
		take := func(ds []Desc) {
			for _, d := range ds {
				if d.Flags&DescVoid == 0 {
					got = append(got, d.Tag)
				}
			}
		}
		tail := r.h.tail.Load()
		for ticket := tail - stepSlots; ticket != tail; ticket++ {
			if s := &r.slots[ticket&r.mask]; s.seq.Load() == ticket+1 && s.d.Flags&DescVoid == 0 {
				want = append(want, s.d.Tag)
			}
		}
		var ds [stepSlots]Desc
		r.Recover(nil)
		if err := r.Check(); err != nil {
			t.Errorf("after %d steps, Recover without room: %v", steps, err)
		}
		for n := r.Recover(ds[:room+1]); n > 0; n = r.Recover(ds[:room+1]) {
			take(ds[:n])
			if err := r.Check(); err != nil {
				t.Errorf("after %d steps, Recover with room for %d: %v", steps, room+1, err)
			}
		}
		ticket, n, err := r.Claim(ds[:])
		if err != nil {
			t.Errorf("after %d steps: %v", steps, err)
		}
		take(ds[:n])
		r.Release(ticket, n)
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("after %d steps: got %v, expected %v", steps, got, want)
		}
		if n, err := r.Publish(ds[:]); n != stepSlots || err != nil {
			t.Errorf("after %d steps the ring takes %d of %d: %v", steps, n, stepSlots, err)
		}
		if s := r.Stats(); s.InRing != stepSlots || s.Published != tail+stepSlots || s.Released+s.Dropped != tail {
			t.Errorf("after %d steps: %+v", steps, s)
		}
	}
}
