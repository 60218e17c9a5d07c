#pragma once

#include <cstdint>

#include "model/kernels/conv/conv.h"

// Data that the parts of the causal AFT-conv kernel (conv.cc) pass to each other.

namespace aft::kernels {

inline constexpr int64_t kConvBlock = 8;     // tokens whose tables are made before channels run
inline constexpr int64_t kConvPackFrom = 8;  // row length that is worth a packed copy of the rings

// The layout of a thread's scratch, in floats.
struct ConvScratch {
  explicit ConvScratch(const ConvParams& params)
      : heads(ConvHeadsPerUnit(params.hid, params.heads)),
        stride((heads + kConvPad - 1) / kConvPad * kConvPad),
        tiles((heads * params.head_width() + kConvTile - 1) / kConvTile),
        block(tiles > 1 ? kConvBlock : 1),
        rows(params.taps - 1) {}

  int64_t KRing() const { return 0; }
  int64_t VRing() const { return rows * stride; }
  int64_t Tables() const { return VRing() + tiles * rows * kConvTile; }
  int64_t PerHead(int i) const { return Tables() + block * TableFloats() + i * stride; }
  // ConvSpread reads a whole vector from the last head of a row on.
  int64_t Floats() const { return PerHead(4) + kConvPad; }

  int64_t Den() const { return (rows + 2) * stride; }
  int64_t Keep() const { return Den() + stride; }
  int64_t Add() const { return Keep() + stride; }
  int64_t TableFloats() const { return Add() + stride; }

  int64_t heads;   // per unit
  int64_t stride;  // between rows of numbers per head
  int64_t tiles;   // into which a unit's channels are cut
  int64_t block;   // the number of tokens whose tables are held at once
  int64_t rows;    // of the rings
};

// One row of the batch and one unit. Pointers are to the unit's first channel or head.
struct ConvRow {
  const float* q;
  const float* k;
  const float* v;
  int64_t packed_stride;
  const float* mask;  // of the row's first token, or null
  float* y;
  int64_t y_stride;
  float* n;
  float* d;
  float* m;
  int64_t position;
  int64_t length;
  int64_t heads;  // of this unit

  bool Masked(int64_t i) const { return mask != nullptr && mask[i] <= kMaskedBelow; }
};

// The keys and values of a ConvRow in the state's rings. Decode steps read them once, and from
// memory when many sequences are live, so the next unit's are fetched while this unit's are used.
template <class Ring>
struct ConvRings {
  Ring* k;
  Ring* v;
  int64_t next_k;  // numbers from here to the rings of the next unit; 0: no fetching
  int64_t next_v;
};

}  // namespace aft::kernels
