// Package synth generates tensors with a byte pattern that a receiver checks without the source.
//
//	for _, s := range synth.GPT2.Tensors() {
//		n, _ := s.Desc.Bytes()
//		buf := make([]byte, n)
//		synth.Fill(buf, synth.Seed(s.Name))
//		// ... move buf to another process, which knows the name ...
//		bad, ok := synth.Verify(buf, synth.Seed(s.Name), 0)
//	}
//
// The pattern depends on the seed and on the position of each byte, so bytes that are missing,
// stale, zero, shifted or from another tensor are found. It is made for finding errors of
// transport, not for secrecy, and it is not a distribution of plausible weights: the bytes of a
// float tensor are arbitrary, NaNs among them, and those of a bool tensor are not only 0 and 1.
package synth
