// Package vec copies, sums, compares and searches bytes with vector instructions.
//
// Copy is the built-in copy up to LargeCopy bytes. The first call above it in the process begins a
// measurement in the background, of less than 60 ms, of which of the machine's kernels is fastest
// for each size class. Copy keeps the built-in copy until then, and wherever nothing is at least 3
// % faster. Calibrate measures at a moment of the caller's choice; Explain prints what was measured
// and chosen:
//
//	vec.Calibrate()
//	vec.Copy(dst, src)
//	fmt.Print(vec.Explain())
//
// # Why there is a choice
//
// An ordinary store to a line that is not in a cache first reads that line from memory, and later
// evicts another one. A copy that exceeds the caches therefore moves three bytes for every byte
// copied, and throws out what the program had cached. Non-temporal stores write whole lines past
// the caches: two bytes moved per byte, nothing evicted. They lose where the destination would have
// fitted a cache, and by how much differs from one machine to the next (so does REP MOVSB, which is
// the best way on some processors and the worst on others), hence the measurement.
//
// # Kernels
//
// Kernels are assembly for amd64 and arm64, found with CPU feature detection. Elsewhere, and with
// the build tag noasm, there is only Builtin, and all functions give the same bytes. Each kernel
// takes any length and any alignment of either slice. They have no stack frame and keep the stack
// pointer still, so a fault inside one (a peer truncated the file that is mapped) unwinds like one
// in Go code and becomes a panic under debug.SetPanicOnFault.
//
// # What was measured
//
// On a quiet 2-core guest of an AMD EPYC (family 26, 32 MiB of L3), medians of nine interleaved
// rounds, GB/s per size:
//
//	          builtin  rep-movsb  nt-avx2  nt-avx512  nt-pages
//	512 KiB      82       109        82        68         66
//	4 MiB        57        59        58        56         53
//	16 MiB       33        29        33        36         29
//	64 MiB       20        20        21        18         18
//	256 MiB      21        21        22        18         17
//
// Up to 16 MiB such figures depend on where the pages happen to lie; between runs 16 MiB was 22 to
// 33 for the built-in copy and 29 to 36 for the non-temporal loops. On a Sapphire Rapids guest the
// built-in copy has 14 at 16 MiB and 7.5 at 256 MiB, a plain AVX-512 non-temporal loop 16.6 and 10,
// and glibc's page-interleaved one 11 to 12 at 256 MiB: that is why NTPages is kept. Dropped
// because they won nowhere: loops of ordinary AVX2 and AVX-512 stores, two pages interleaved
// instead of four, page-wise prefetch before the stores, other prefetch distances and hints.
//
// # Checksums
//
// CRC32C is hash/crc32 with the Castagnoli polynomial, or a folding kernel twice as fast where the
// CPU can multiply without carry in 512 bits; CopyCRC32C copies and checksums in one pass over
// memory. Sum is that of the internet checksum.
//
// # Other work on bytes
//
// Set, Xor, Swap, Index and Sum have kernels of AVX-512 and of AVX2 (amd64), which tools/asm
// writes; Go code does the same elsewhere, for short slices, and for what is left behind whole
// turns. The processor's features decide which kernel runs. Set and Xor store past the caches in
// the size classes where Copy was measured to be faster so. Scatter and Gather are loops in Go with
// moves of the elements' size. Index, Xor and Gather have no user in this module besides its
// benchmark.
package vec

//go:generate go run -C ../../tools ./asm -pkg vec -out ../mem/vec/bytes_amd64.s -stubs ../mem/vec/bytes_kernels_amd64.go
