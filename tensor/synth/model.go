package synth

import (
	"fmt"

	"github.com/penstock-io/penstock/tensor"
)

// Spec is a tensor without its data.
type Spec struct {
	Name string
	Desc tensor.Desc
}

// Model is the size of a decoder in the style of GPT-2 (A. Radford et al., Language models are
// unsupervised multitask learners, 2019). All four numbers must be at least 1.
type Model struct {
	Layers  int
	Hidden  int // width of the residual stream
	Vocab   int
	Context int // positions
}

var (
	// GPT2 is GPT-2 small: 124,439,808 parameters.
	GPT2 = Model{Layers: 12, Hidden: 768, Vocab: 50257, Context: 1024}
	// Tiny has the same tensors in every layer type at a size for tests: less than 1 MiB.
	Tiny = Model{Layers: 6, Hidden: 32, Vocab: 257, Context: 64}
)

// layerTypes are the element types of the attention and MLP matrices of layer i, by i modulo 6:
// mostly f32, with each narrower type in some layer, as a model that was quantised in part has
// them. Types of 8 bits bring a scale per output.
var layerTypes = [...]struct{ attention, mlp tensor.DType }{
	{tensor.F32, tensor.F32},
	{tensor.BF16, tensor.BF16},
	{tensor.F32, tensor.I8},
	{tensor.F16, tensor.F16},
	{tensor.F32, tensor.F8E4M3},
	{tensor.U8, tensor.F8E5M2},
}

// Tensors lists the state dict in the order of the layers: the weights of an embedding, of Layers
// blocks and of the final norm, and the buffers that go with them (causal masks as bool, position
// ids as i64). Names are unique; all tensors are row-major. The caller owns the result.
func (m Model) Tensors() []Spec {
	h, ctx := int64(m.Hidden), int64(m.Context)
	var all []Spec
	add := func(name string, d tensor.DType, shape ...int64) {
		all = append(all, Spec{name, tensor.Desc{DType: d, Shape: shape}})
	}
	// A linear layer in the layout of GPT-2: inputs by outputs.
	linear := func(name string, d tensor.DType, in, out int64) {
		add(name+".weight", d, in, out)
		add(name+".bias", tensor.F32, out)
		if d.Bits() == 8 {
			add(name+".weight_scale", tensor.F32, out)
		}
	}
	norm := func(name string) {
		add(name+".weight", tensor.F32, h)
		add(name+".bias", tensor.F32, h)
	}
	add("wte.weight", tensor.F32, int64(m.Vocab), h)
	add("wpe.weight", tensor.F32, ctx, h)
	add("position_ids", tensor.I64, 1, ctx)
	for i := range m.Layers {
		types := layerTypes[i%len(layerTypes)]
		p := fmt.Sprintf("h.%d.", i)
		norm(p + "ln_1")
		add(p+"attn.mask", tensor.Bool, 1, 1, ctx, ctx)
		linear(p+"attn.c_attn", types.attention, h, 3*h)
		linear(p+"attn.c_proj", types.attention, h, h)
		norm(p + "ln_2")
		linear(p+"mlp.c_fc", types.mlp, h, 4*h)
		linear(p+"mlp.c_proj", types.mlp, 4*h, h)
	}
	norm("ln_f")
	return all
}
