// Package safetensors reads and writes the safetensors format: named tensors in one file.
// https://github.com/huggingface/safetensors defines it.
//
// Reading copies no tensor: Parse gives views of the bytes it was given, and Open views of the
// mapped file.
//
//	f, err := safetensors.Open("model.safetensors")
//	if err != nil { ... }          // says at which byte of the file, what was found and what was expected
//	defer f.Close()                // the views die here
//	for _, t := range f.Tensors() { fmt.Println(t) }
//
// A file may come from an attacker, so the reader is stricter than JSON. The layout:
//
//	8 bytes    n: length of the header, little-endian, at most 100,000,000
//	n bytes    header: one JSON object in UTF-8 that begins with '{', white space allowed behind it
//	the rest   data
//
// The header maps each tensor's name to its dtype, shape and data_offsets: the first byte and the
// byte after the last one, counted from the beginning of the data. "__metadata__" may map strings
// to strings. Refused are: a name or key that occurs twice (JSON parsers would take one of them
// silently), a key that is missing, numbers that are not plain integers of at least 0, tensors that
// overlap or leave holes, data before or behind all tensors, and a length that does not fit dtype
// and shape. Memory used for a header is a small multiple of the length of the header itself,
// whatever numbers it contains.
//
// A tensor with a dtype that package tensor does not have, or with a key that is not known, does
// not hide the others: it is opaque bytes ([File.Opaque]). Its length has to fit where the format
// says how long an element of the dtype is.
//
// A tensor's name is data: this package never uses it as a path, nor should its callers.
package safetensors
