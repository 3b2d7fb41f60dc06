package engine

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/packet/burst"
)

// keeper takes the first packet of each burst, and fails behind the last.
type keeper struct {
	kept *burst.Burst
	last int
}

var errEnough = errors.New("enough")

func (k *keeper) Consume(_ context.Context, b *burst.Burst) error {
	b.Take(k.kept, 0)
	if k.kept.Len() == k.last {
		return errEnough
	}
	return nil
}

func (k *keeper) Close() error { k.kept.Release(); return nil }

// What came before the end is consumed first; what a consumer leaves goes back, also when it fails;
// what it takes is its own.
func TestConsume(t *testing.T) {
	for _, last := range []int{9, 3} {
		q := newQueue(t, 16)
		q.push(upTo(7)...)
		q.Close()
		k, b := &keeper{burst.New(16), last}, burst.New(2)
		err := Consume(t.Context(), NewRx(q, Batching{}), b, k)
		if want := map[int]error{9: ErrClosed, 3: errEnough}[last]; err != want || b.Len() != 0 {
			t.Errorf("%v with %d packets, expected %v", err, b.Len(), want)
		}
		if want := []uint64{0, 2, 4, 6}[:min(last, 4)]; !slices.Equal(numbers(k.kept), want) ||
			q.pool.Stats().InUse != len(want) {
			t.Errorf("%d: kept %v, %d slots are out, expected %v", last, numbers(k.kept), q.pool.Stats().InUse, want)
		}
		k.Close()
	}
}
