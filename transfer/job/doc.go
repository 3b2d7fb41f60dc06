// Package job moves memory over many sessions and to many peers: the layer above package transfer.
//
// A [Link] keeps sessions with the node at one address. Its jobs ([Link.Fetch], [Link.Store]) go on
// where they were when a session is lost or a process is restarted; [Link.Do] does the same for
// requests. docs/resume.md says what is guaranteed.
//
//	link := job.NewLink(node, "tcp://127.0.0.1:7070", job.LinkOptions{})
//	j, err := link.Fetch(ctx, "weights", region.All(), job.Options{})
//	err = j.Wait(ctx)
//
// [PutAll] puts the same memory to many peers, each with a future of its own.
package job
