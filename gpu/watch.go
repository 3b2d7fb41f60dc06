package gpu

import (
	"context"
	"sync"
	"sync/atomic"
)

// Watch wakes an owner who sleeps until an event has happened: it has a goroutine for that, once it
// is needed. The zero value with Wake is ready.
type Watch struct {
	Wake func() // called by the goroutine

	once    sync.Once
	ask     chan *Event
	waiting atomic.Bool
	over    sync.WaitGroup
}

// For has Wake be called when e has happened, or when the event has that it waits for already: the
// owner looks, and asks again. It returns at once. e stays open until Close.
func (w *Watch) For(e *Event) {
	w.once.Do(func() {
		w.ask = make(chan *Event, 1)
		w.over.Go(func() {
			for e := range w.ask {
				_ = e.Wait(context.Background()) // the owner asks the event again
				w.waiting.Store(false)
				w.Wake()
			}
		})
	})
	if !w.waiting.Swap(true) {
		w.ask <- e
	}
}

// Close ends the goroutine, once the event that it waits for has happened. For is not called any
// more.
func (w *Watch) Close() {
	w.once.Do(func() {})
	if w.ask != nil {
		close(w.ask)
	}
	w.over.Wait()
}
