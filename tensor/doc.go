// Package tensor describes tensors: dtype, shape, strides, and the bytes that hold them.
//
// It does no arithmetic on tensors and allocates no memory for them. A Tensor is a view: the source
// of the bytes (a mapped file, a memory region, a Go slice) owns them and decides how long they
// live. What the package gives is the knowledge that a transfer needs and that a hostile peer or
// file would like to get wrong: how many bytes a tensor takes, whether they are one contiguous
// span, and a small binary form of the description for control messages. All sizes are 64-bit and
// every product is checked for overflow.
//
//	d := tensor.Desc{DType: tensor.BF16, Shape: []int64{1024, 768}}
//	n, err := d.Bytes()                      // 1572864
//	t, err := tensor.New("h.0.w", d, memory) // refuses memory of any other length
//
// Sub-packages read and write files: tensor/safetensors and tensor/npy, both as views of the input
// where the format allows it. Package tensor/synth makes the descriptions of a model and a byte
// pattern that can be checked without the source.
package tensor
