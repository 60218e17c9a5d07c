// Common code of the linear kernels, compiled once per instruction set.
#pragma once

#include <cstdint>
#include <cstring>

#include "model/kernels/exp-inl.h"
#include "model/kernels/instruction_set.h"
#include "model/kernels/linear/linear_rows.h"
#include "model/kernels/linear/packed_weight.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// A vector is at most half a panel, so that panels always split into pairs of vectors.
using LinearTag = hn::CappedTag<float, 16>;
using LinearVec = hn::Vec<LinearTag>;

struct LinearCall {
  const PackedWeight& linear;
  const LinearRows& rows;
  float* y;
  int64_t y_stride;
  Epilogue epilogue;
};

// gelu(x) = x * sigmoid(2 * sqrt(2/pi) * (x + 0.044715 x^3)), which is the tanh form rewritten.
HWY_INLINE LinearVec GeluTanh(LinearTag d, LinearVec x) {
  const LinearVec cubic =
      hn::MulAdd(hn::Mul(x, x), hn::Set(d, 0.0713548163F), hn::Set(d, 1.59576912F));
  return hn::Div(x, OnePlusExpNeg(d, hn::Mul(x, cubic)));
}

// gelu(x) = x * Phi(x), Phi the normal distribution. It is computed from the tail of Phi, so that
// no digit cancels: Phi(-a) = exp(-a^2 / 2) * t * p(t), t = 1 / (1 + 0.3 a), a >= 0. p is a minimax
// polynomial of degree 7 for a <= 14 with a relative error of 1.5e-7 (4e-7 as computed).
HWY_INLINE LinearVec Gelu(LinearTag d, LinearVec x) {
  const LinearVec a = hn::Abs(x);
  const LinearVec one = hn::Set(d, 1.0F);
  const LinearVec t = hn::Div(one, hn::MulAdd(a, hn::Set(d, 0.3F), one));
  LinearVec p = hn::Set(d, 0.0356747769F);
  for (const float c : {-0.157203108F, 0.20635353F, -0.0536836721F, 0.128561646F, 0.0999134853F,
                        0.120753959F, 0.119629301F}) {
    p = hn::MulAdd(p, t, hn::Set(d, c));
  }
  const LinearVec density = Exp(d, hn::Mul(hn::Mul(a, a), hn::Set(d, -0.5F)));
  const LinearVec tail = hn::Mul(x, hn::Mul(hn::Mul(p, t), density));
  return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Sub(x, tail), tail);
}

// Loads a vector of a row's inputs, of which `left` remain, with zeros after the last one.
HWY_INLINE LinearVec LoadInputs(LinearTag d, const float* x, int64_t left) {
  if (left >= static_cast<int64_t>(hn::Lanes(d))) return hn::LoadU(d, x);
  HWY_ALIGN float part[16] = {};
  std::memcpy(part, x, static_cast<size_t>(left) * sizeof(float));
  return hn::Load(d, part);
}

HWY_INLINE LinearVec Finish(LinearTag d, Epilogue epilogue, LinearVec sum, const float* y) {
  if (epilogue.add) return hn::Add(hn::LoadU(d, y), sum);
  switch (epilogue.activation) {
    case Activation::kRelu:
      return AtLeast(d, 0.0F, sum);
    case Activation::kGelu:
      return Gelu(d, sum);
    case Activation::kGeluTanh:
      return GeluTanh(d, sum);
    case Activation::kSquaredRelu: {
      const LinearVec x = AtLeast(d, 0.0F, sum);
      return hn::Mul(x, x);
    }
    case Activation::kNone:
      break;
  }
  return sum;
}

// Stores vectors of sums of the columns [column, column + lanes). One object serves many rows: it
// reads the call once, because a compiler must assume that the stores may change the call.
class ColumnStore {
 public:
  HWY_INLINE ColumnStore(const LinearCall& call, int64_t column)
      : y_(call.y + column),
        stride_(call.y_stride),
        left_(call.linear.out - column),
        epilogue_(call.epilogue) {}

  HWY_INLINE void Put(LinearVec sum, int64_t row) const {
    const LinearTag d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    float* const y = y_ + row * stride_;
    if (left_ >= lanes) {
      hn::StoreU(Finish(d, epilogue_, sum, y), d, y);
    } else if (left_ > 0) {
      HWY_ALIGN float part[16] = {};
      std::memcpy(part, y, static_cast<size_t>(left_) * sizeof(float));
      hn::Store(Finish(d, epilogue_, sum, part), d, part);
      std::memcpy(y, part, static_cast<size_t>(left_) * sizeof(float));
    }
  }

 private:
  float* y_;
  int64_t stride_;
  int64_t left_;
  Epilogue epilogue_;
};

// Keeps a vector of weights in a register if several rows use it. GCC 12 would read it from memory
// for each of two or three rows, and AVX-512 reads only one vector in a cycle. `weights` must be a
// local variable: GCC would write an element of an array to memory.
template <int kRows, class V>
HWY_INLINE void KeepForRows([[maybe_unused]] V& weights) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kRows > 1) asm("" : "+v"(weights));
#endif
}

// The bytes of a panel for four bytes of inputs. A turn of a loop reads them, or a part of them.
constexpr int64_t kPanelRow = 4 * kPanel;

// The turns of a loop request weights, so that these arrive before they are read. Request is called
// once per turn and panel, and EndTurn at the end of a turn.

// If only one pass reads a panel, its turns request what they will read kDistance bytes further on,
// or nothing if that is 0.
template <int64_t kDistance, int kCache>
struct PassAhead {
  HWY_INLINE void Start(const char* /*next*/) {}
  HWY_INLINE void Request([[maybe_unused]] const void* weights, int64_t /*offset*/) {
    if constexpr (kDistance > 0) {
      const char* const at = static_cast<const char*>(weights) + kDistance;
      FetchLine<kCache>(at);
      FetchLine<kCache>(at + 64);
    }
  }
  HWY_INLINE void EndTurn() {}
};
// The prefetching of many processors follows the reads of a loop too closely.
using OwnAhead = PassAhead<4096, kFirstCache>;
// Where PrefersOneStream(), loops with few rows request nothing, because such a processor fetches
// one stream at the memory's speed itself. Loops with more rows read too slowly for that.
using NothingAhead = PassAhead<0, kFirstCache>;
using StreamAhead = PassAhead<8192, kSecondCache>;

// If several passes read the same panels, each of them requests a part of the panels after these.
// Otherwise the first pass would wait for memory, and the others would leave memory idle. The
// requested weights go to the second cache, because the first one may be too small.
struct SharedAhead {
  const char* past;  // weights that begin here or later belong to another thread
  int64_t in_turn;   // the bytes of each panel that a turn requests, at most 64
  const char* at = nullptr;
  int64_t step = 0;
  HWY_INLINE void Start(const char* next) {
    at = next;
    step = next < past ? in_turn : 0;
  }
  HWY_INLINE void Request(const void* /*weights*/, int64_t offset) {
    FetchLine<kSecondCache>(at + offset);
  }
  HWY_INLINE void EndTurn() { at += step; }
};

// The most bytes of several panels at once that passes may share. With more, two threads read the
// weights of few rows up to 9 % more slowly.
constexpr int64_t kMostShared = 256 << 10;

// Registers hold about 24 sums with 32 registers and 12 with 16. A loop that shares requests needs
// one more address. Therefore x86 with 32 registers has room for fewer rows then.
#if AFT_MANY_REGISTERS
constexpr int kLinearRows = 12;  // at once
constexpr int kSharedRows = 9;
constexpr int kLinearSums = 24;
#else
constexpr int kLinearRows = 6;
constexpr int kSharedRows = 6;
constexpr int kLinearSums = 12;
#endif

constexpr int kVectorsInPanel = static_cast<int>(kPanel / hn::MaxLanes(LinearTag()));

// A loop computes kRows rows of kPanels panels, and in each panel kVectors vectors of sums.
template <int kRowsAtOnce, int kPanelsAtOnce, int kVectorsAtOnce>
struct BlockShape {
  static constexpr int kRows = kRowsAtOnce;
  static constexpr int kPanels = kPanelsAtOnce;
  static constexpr int kVectors = kVectorsAtOnce;
};

// With few rows a loop reads several panels: eight chains hide the latency of the additions, and
// several streams read weights at the memory's speed.
struct SeveralStreams {
  static constexpr int Panels(int64_t rows) {
    const int64_t wanted = kLinearSums / (2 * rows);
    return static_cast<int>(wanted < 1 ? 1 : wanted > 4 ? 4 : wanted);
  }
  static constexpr int kVectors = 2;
};

// Where PrefersOneStream(): a loop reads one panel.
template <int kVectorsAtOnce>
struct OneStream {
  static constexpr int Panels(int64_t /*rows*/) { return 1; }
  static constexpr int kVectors = kVectorsAtOnce;
};

// A BlockFn has
//
//   Run<Shape>(call, ahead, row, panel, column)  computes rows [row, row + kRows) of panels [panel,
//                                                panel + kPanels), in each panel the vectors from
//                                                `column` on
//
// and, for CPUs that prefer one stream,
//
//   kStreamAheadRows  the fewest rows with which StreamAhead is faster than NothingAhead, if a
//                     panel has two vectors
//   kWholeRows        the most rows with which Run computes whole panels, if they have more than
//                     two vectors, and
//   WholeAhead        what it requests then
template <class BlockFn, class Shape, class Ahead>
void WholePanels(const LinearCall& call, Ahead& ahead, int64_t row, int64_t panel) {
  const int64_t columns = Shape::kVectors * static_cast<int64_t>(hn::Lanes(LinearTag()));
  if (row == 0) {
    ahead.Start(static_cast<const char*>(call.linear.bytes) +
                (panel + Shape::kPanels) * PanelBytes(call.linear.in, call.linear.format));
  }
  for (int64_t column = 0; column < kPanel; column += columns) {
    BlockFn::template Run<Shape>(call, ahead, row, panel, column);
  }
}

// Runs kRows rows through all panels.
template <class BlockFn, class Streams, int kRows, class Ahead>
void AllPanels(const LinearCall& call, Ahead& ahead, int64_t row, int64_t begin, int64_t end) {
  constexpr int kAtOnce = Streams::Panels(kRows);
  constexpr int kVectors = Streams::kVectors;
  int64_t panel = begin;
  for (; panel + kAtOnce <= end; panel += kAtOnce) {
    WholePanels<BlockFn, BlockShape<kRows, kAtOnce, kVectors>>(call, ahead, row, panel);
  }
  if constexpr (kAtOnce > 2) {
    for (; panel + 2 <= end; panel += 2) {
      WholePanels<BlockFn, BlockShape<kRows, 2, kVectors>>(call, ahead, row, panel);
    }
  }
  for (; panel < end; ++panel) {
    WholePanels<BlockFn, BlockShape<kRows, 1, kVectors>>(call, ahead, row, panel);
  }
}

// Calls AllPanels<rows>, for kFewest <= rows <= kRows.
template <class BlockFn, class Streams, int kFewest, int kRows, class Ahead>
HWY_INLINE void DispatchRows(const LinearCall& call, Ahead& ahead, int64_t row, int64_t rows,
                             int64_t begin, int64_t end) {
  if constexpr (kRows > kFewest) {
    if (rows < kRows) {
      return DispatchRows<BlockFn, Streams, kFewest, kRows - 1>(call, ahead, row, rows, begin, end);
    }
  }
  AllPanels<BlockFn, Streams, kRows>(call, ahead, row, begin, end);
}

// Runs all rows in one pass over the panels if the registers suffice, and returns whether they do.
template <class BlockFn>
bool RunAsOneStream(const LinearCall& call, int64_t begin, int64_t end) {
  const int64_t rows = call.rows.rows;
  if constexpr (kVectorsInPanel == 2) {
    constexpr int kFewest = BlockFn::kStreamAheadRows;
    if (rows > kLinearRows) return false;
    if (rows < kFewest) {
      NothingAhead ahead;
      DispatchRows<BlockFn, OneStream<2>, 1, kFewest - 1>(call, ahead, 0, rows, begin, end);
    } else {
      StreamAhead ahead;
      DispatchRows<BlockFn, OneStream<2>, kFewest, kLinearRows>(call, ahead, 0, rows, begin, end);
    }
    return true;
  } else if constexpr (BlockFn::kWholeRows > 0) {
    if (rows > BlockFn::kWholeRows) return false;
    typename BlockFn::WholeAhead ahead;
    DispatchRows<BlockFn, OneStream<kVectorsInPanel>, 1, BlockFn::kWholeRows>(call, ahead, 0, rows,
                                                                              begin, end);
    return true;
  }
  return false;
}

template <class BlockFn>
void AllRows(const LinearCall& call, int64_t begin, int64_t end) {
  const int64_t rows = call.rows.rows;
  if (rows <= 0) return;
  const bool one_stream = PrefersOneStream();
  if (one_stream && RunAsOneStream<BlockFn>(call, begin, end)) return;
  const int64_t blocks = rows <= kLinearRows ? 1 : (rows + kSharedRows - 1) / kSharedRows;
  const int64_t passes = blocks * kVectorsInPanel / 2;
  const int64_t panel_bytes = PanelBytes(call.linear.in, call.linear.format);
  const int64_t at_once = one_stream ? 1 : SeveralStreams::Panels(rows);
  if (blocks == 1 && (passes == 1 || (at_once > 1 && at_once * panel_bytes > kMostShared))) {
    OwnAhead ahead;
    return DispatchRows<BlockFn, SeveralStreams, 1, kLinearRows>(call, ahead, 0, rows, begin, end);
  }
  // One thread continues with the next layer, whose weights follow.
  const bool is_alone = begin == 0 && end == LinearPanels(call.linear.out);
  const int64_t past = is_alone ? end + 1 : end;
  SharedAhead ahead = {static_cast<const char*>(call.linear.bytes) + past * panel_bytes,
                       (kPanelRow + passes - 1) / passes};
  if (blocks == 1) {
    if (one_stream) {
      return DispatchRows<BlockFn, OneStream<2>, 1, kLinearRows>(call, ahead, 0, rows, begin, end);
    }
    return DispatchRows<BlockFn, SeveralStreams, 1, kLinearRows>(call, ahead, 0, rows, begin, end);
  }
  // Blocks of rows have nearly equal sizes. A panel stays in the cache while all rows use it.
  for (int64_t panel = begin; panel < end; ++panel) {
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t first = rows * b / blocks;
      DispatchRows<BlockFn, OneStream<2>, 1, kSharedRows>(
          call, ahead, first, rows * (b + 1) / blocks - first, panel, panel + 1);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
