package config_test

import (
	"testing"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/convert"
)

// Each word of data_types is a conversion that there is.
func TestDataTypes(t *testing.T) {
	for _, c := range []struct {
		types config.DataTypes
		want  convert.Spec
	}{
		{config.DataTypes{Input: "int4", Output: "bf16", Endianness: "host", Scale: 1},
			convert.Spec{From: convert.Format{Bits: 4, BigEndian: true}, To: tensor.BF16, Scale: 1}},
		{config.DataTypes{Input: "int16", Output: "fp32", Endianness: "network", Scale: 1},
			convert.Spec{From: convert.Format{Bits: 16, BigEndian: true}, To: tensor.F32, Scale: 1}},
		{config.DataTypes{Input: "uint12", Output: "complex64", Endianness: "host", Scale: 0.5, Offset: -1024},
			convert.Spec{From: convert.Format{Bits: 12, Unsigned: true}, To: tensor.C64, Scale: 0.5, Offset: -1024}},
		{config.DataTypes{Input: "int14", Output: "uint16", Endianness: "network", Scale: 4, Offset: 32768},
			convert.Spec{From: convert.Format{Bits: 14, BigEndian: true}, To: tensor.U16, Scale: 4, Offset: 32768}},
		{config.DataTypes{Input: "uint32", Output: "complex128", Endianness: "host", Scale: 1},
			convert.Spec{From: convert.Format{Bits: 32, Unsigned: true}, To: tensor.C128, Scale: 1}},
	} {
		got := c.types.Spec()
		if got != c.want {
			t.Errorf("%+v is %+v, want %+v", c.types, got, c.want)
		}
		if _, err := convert.New(got); err != nil {
			t.Errorf("%+v: %v", c.types, err)
		}
	}
}
