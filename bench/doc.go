// Package bench measures transfers between two processes, parts of this process, and the tools of
// other projects beside them. How samples become figures and verdicts, and the format of result
// files, are in package bench/paired.
//
//	r, err := bench.Transfer(ctx, bench.TransferOptions{Command: []string{exe, "bench-peer"}})
//	if err != nil { ... }
//	r.Table(os.Stdout) // or r.Write(file)
//
// Rules that every figure here obeys:
//
//   - It carries the machine, the method, the samples and the number of bytes that the receiver
//     checked. A timed run whose bytes were wrong ends the benchmark; one whose bytes were not
//     checked fails the report.
//   - Puts and gets are printed beside their physical ceiling, the speed at which the cores that
//     take part copy memory, measured in the same run. A figure above its ceiling fails the report:
//     something did not move. Sizes that fit the caches have no such ceiling, because there a copy
//     can be faster than the ceiling that was measured a moment before.
//   - A comparison is made of interleaved pairs, at least 20 for a verdict, so that a machine that
//     slows down slows both.
//   - What shares the machine with ours in a comparison, such as a second process that polls, rests
//     while theirs run.
//
// The second process is this program again (see ServePeer). It allocates the memory that is written
// to and read from, fills it and checks it outside the timed part.
package bench
