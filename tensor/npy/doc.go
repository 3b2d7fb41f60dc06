// Package npy reads and writes numpy's .npy files. NEP 1 of numpy defines the format.
//
// Reading copies nothing: Parse gives a view of the bytes it was given, which may be a mapped file.
// An array in Fortran order is a view with column-major strides. Big-endian data have no view;
// Parse refuses them and ParseCopy swaps them into fresh memory.
//
//	t, err := npy.Parse(b)          // t.Bytes() lies inside b
//	n, err := npy.Write(w, t)
//
// The layout:
//
//	6 bytes    "\x93NUMPY"
//	2 bytes    version: major 1, 2 or 3, minor 0
//	2 bytes    length of the header, little-endian (4 bytes in versions 2 and 3)
//	n bytes    header: a Python dict with the keys 'descr', 'fortran_order' and 'shape', padded with spaces and a newline
//	the rest   data
//
// The header is read by a parser for this one kind of dict: keys in any order, either quote, a
// trailing comma, white space; everything else that Python would take is refused, with the byte
// where it stands. Objects (pickles), structured types, strings and dates are refused too. Memory
// used for a header is bounded by the rank, at most 32, not by its numbers.
package npy
