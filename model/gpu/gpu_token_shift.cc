#include "model/gpu/gpu_token_shift.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "model/config/kinds.h"
#include "model/gpu/kernel_status.h"

namespace aft {

namespace cuda = kernels::cuda;

namespace {

// The parts of the packed input, and the gate of the values as a further part.
std::vector<PackedPart> AllParts(const NetworkConfig& config) {
  const KindSpec& kind = SpecOf(config.mixer.kind);
  const int64_t hid = MixerWidth(config);
  std::vector<PackedPart> parts = kind.packed(config.mixer, hid);
  if (kind.value_gate != nullptr) parts.push_back(kind.value_gate(config.mixer, hid));
  return parts;
}

// The columns of GpuShiftBuffers::narrow that belong to a part. They begin at 16-byte boundaries in
// every format.
int64_t NarrowColumns(const PackedPart& part, Number format) {
  if (part.rank == 0) return 0;
  return cuda::QuantizedColumns(part.rank) + (part.bias ? BiasColumns(format) : 0);
}

int64_t NarrowWidth(const NetworkConfig& config, Number format) {
  int64_t columns = 0;
  for (const PackedPart& part : AllParts(config)) columns += NarrowColumns(part, format);
  return columns;
}

// The most parts of a token shift; those of a feed-forward are fewer.
int64_t MostParts(const NetworkConfig& config) {
  const KindSpec& kind = SpecOf(config.mixer.kind);
  return static_cast<int64_t>(kind.packed(config.mixer, MixerWidth(config)).size());
}

bool MixesValues(const NetworkConfig& config) {
  return SpecOf(config.mixer.kind).value_gate != nullptr;
}

cuda::ColumnFunction FunctionOf(PackedPart::Between between) {
  if (between == PackedPart::Between::kTanh) return cuda::ColumnFunction::kTanh;
  if (between == PackedPart::Between::kSigmoid) return cuda::ColumnFunction::kSigmoid;
  return cuda::ColumnFunction::kNone;
}

}  // namespace

int64_t GpuShiftBuffers::BytesPerToken(const NetworkConfig& config, Number format) {
  return GpuShiftBuffers(config, format, /*tokens=*/1, at::kCPU).bytes();
}

GpuShiftBuffers::GpuShiftBuffers(const NetworkConfig& config, Number format, int64_t tokens,
                                 at::Device device)
    : width(config.d_model),
      narrow_width(NarrowWidth(config, format)),
      inputs(MostParts(config) * tokens * width, ActivationFormat(format), device),
      narrow(tokens * narrow_width, Number::kFp32, device) {
  if (MixesValues(config)) {
    first_values = DeviceBuffer(tokens * MixerWidth(config), Number::kFp32, device);
  }
  std::vector<cuda::ColumnFunction> columns;
  std::vector<int32_t> begin = {0};
  for (const PackedPart& part : AllParts(config)) {
    if (part.rank == 0) continue;
    columns.insert(columns.end(), static_cast<size_t>(part.rank), FunctionOf(part.between));
    columns.insert(columns.end(), static_cast<size_t>(NarrowColumns(part, format) - part.rank),
                   cuda::ColumnFunction::kNone);
    begin.push_back(static_cast<int32_t>(columns.size()));
  }
  narrow_parts = static_cast<int64_t>(begin.size()) - 1;
  if (IsQuantized(format)) {
    const int64_t row = std::max(MostParts(config) * cuda::QuantizedStride(width),
                                 cuda::QuantizedStride(quantized_narrow_width()));
    quantized = DeviceBuffer(tokens * row, format, device);
  }
  if (narrow_width == 0) return;
  // Products write only the columns of the ranks.
  narrow.Rows(0, tokens, narrow_width).fill_(IsQuantized(format) ? 0 : 1);
  const Number activation = ActivationFormat(format);
  if (activation != Number::kFp32) {
    rounded = DeviceBuffer(tokens * narrow_width, activation, device);
  }
  narrow_begin = at::empty({narrow_parts + 1}, at::kInt);
  std::copy(begin.begin(), begin.end(), narrow_begin.data_ptr<int32_t>());
  narrow_begin = narrow_begin.to(device);
  functions = at::empty({narrow_width}, at::kByte);
  std::copy(columns.begin(), columns.end(),
            static_cast<cuda::ColumnFunction*>(functions.mutable_data_ptr()));
  functions = functions.to(device);
}

absl::Status GpuShiftBuffers::QuantizeInputs(int64_t rows, cuda::Stream stream) const {
  if (quantized.bytes() == 0) return absl::OkStatus();
  return KernelStatus(
      cuda::QuantizeRows({width}, inputs.In(width), rows, quantized.Out(width), stream),
      "QuantizeRows");
}

absl::StatusOr<at::Tensor> GpuShiftBuffers::Activate(int64_t count, cuda::Stream stream) const {
  const cuda::In from = narrow.In(narrow_width);
  const auto* const function = static_cast<const cuda::ColumnFunction*>(functions.const_data_ptr());
  if (quantized.bytes() > 0) {
    const cuda::QuantizeModel model = {narrow_width, narrow_parts,
                                       narrow_begin.const_data_ptr<int32_t>(), function};
    const int64_t row = quantized_narrow_width();
    AFT_RETURN_IF_ERROR(KernelStatus(
        cuda::QuantizeRows(model, from, count, quantized.Out(row), stream), "QuantizeRows"));
    return quantized.Rows(0, count, row);
  }
  const DeviceBuffer& to = rounded.bytes() > 0 ? rounded : narrow;
  AFT_RETURN_IF_ERROR(
      KernelStatus(cuda::ApplyToColumns(static_cast<const float*>(from.data), function, count,
                                        narrow_width, to.Out(narrow_width), stream),
                   "ApplyToColumns"));
  return to.Rows(0, count, narrow_width);
}

absl::Status GpuTokenShift::Forward(const float* x, const cuda::TokenRows& rows, cuda::State state,
                                    const GpuShiftBuffers& buffers, cuda::Stream stream) const {
  const cuda::ShiftModel model = {buffers.width, parts(), shares_.const_data_ptr<float>()};
  return KernelStatus(cuda::ShiftTokens(model, rows, x, state, buffers.inputs.Out(buffers.width),
                                        rows.tokens, stream),
                      "ShiftTokens");
}

absl::StatusOr<GpuShiftedProjection> GpuShiftedProjection::Create(const NetworkConfig& config,
                                                                  int64_t index,
                                                                  const WeightMap& tensors,
                                                                  Number format,
                                                                  at::Device device) {
  const std::string prefix = absl::StrCat("layers.", index, ".mixer.");
  const at::Tensor shares = tensors.at(prefix + "shift").to(device);
  GpuShiftedProjection made((GpuTokenShift(shares)));
  made.mixes_values_ = MixesValues(config);
  made.weight_bytes_ = DeviceBytes(shares);
  int64_t column = 0;
  int64_t narrow = 0;
  int64_t scales = 0;  // the columns of a quantized narrow row that are scales so far
  int64_t value_input = 0;
  for (const PackedPart& spec : AllParts(config)) {
    const std::string name = prefix + spec.name;
    Part part;
    part.input = static_cast<int64_t>(made.parts_.size());
    part.column = column;
    part.columns = spec.columns;
    part.narrow = narrow;
    part.activated = narrow + scales;
    part.rank = spec.rank;
    if (absl::string_view(spec.name) == "v") {
      value_input = part.input;
      made.value_column_ = column;
    }
    if (part.input == MostParts(config)) {  // the value gate, which follows the packed parts
      if (index == 0) break;
      part.gates_values = true;
      part.input = value_input;
    }
    if (spec.rank > 0) {
      AFT_ASSIGN_OR_RETURN(
          part.down, GpuLinear::Load(tensors, name + ".down", /*bias=*/false, format, device));
      made.weight_bytes_ += part.down.weight_bytes();
    }
    AFT_ASSIGN_OR_RETURN(part.product, GpuLinear::Load(tensors, spec.rank > 0 ? name + ".up" : name,
                                                       spec.bias, format, device));
    made.weight_bytes_ += part.product.weight_bytes();
    made.parts_.push_back(std::move(part));
    column += spec.columns;
    narrow += NarrowColumns(spec, format);
    if (spec.rank > 0 && IsQuantized(format)) scales += cuda::kScaleBytes;
  }
  return made;
}

absl::Status GpuShiftedProjection::Forward(const float* x, const cuda::TokenRows& rows,
                                           cuda::State state, const GpuShiftBuffers& buffers,
                                           const at::Tensor& gates, const at::Tensor& packed,
                                           cuda::Stream stream) const {
  AFT_RETURN_IF_ERROR(shift_.Forward(x, rows, state, buffers, stream));
  const int64_t count = rows.tokens;
  const int64_t narrow_width = buffers.narrow_width;
  AFT_RETURN_IF_ERROR(buffers.QuantizeInputs(shift_.parts() * count, stream));
  const auto result = [&](const Part& part) {
    return part.gates_values ? gates : packed.narrow(1, part.column, part.columns);
  };
  for (const Part& part : parts_) {
    const at::Tensor input = buffers.Operand(part.input, count);
    if (part.rank == 0) {
      AFT_RETURN_IF_ERROR(part.product.Forward(input, result(part), stream));
    } else {
      const at::Tensor narrow = buffers.narrow.Rows(0, count, narrow_width);
      AFT_RETURN_IF_ERROR(
          part.down.Forward(input, narrow.narrow(1, part.narrow, part.rank), stream));
    }
  }
  if (narrow_width == 0) return absl::OkStatus();
  AFT_ASSIGN_OR_RETURN(const at::Tensor activated, buffers.Activate(count, stream));
  for (const Part& part : parts_) {
    if (part.rank == 0) continue;
    AFT_RETURN_IF_ERROR(part.product.Forward(
        activated.narrow(1, part.activated, part.product.columns()), result(part), stream));
  }
  if (!mixes_values_) return absl::OkStatus();
  const at::Tensor values = packed.narrow(1, value_column_, gates.size(1));
  const bool is_first = !parts_.back().gates_values;
  return KernelStatus(
      cuda::MixValues(values.data_ptr<float>(), values.stride(0),
                      is_first ? nullptr : gates.const_data_ptr<float>(), count, gates.size(1),
                      static_cast<float*>(buffers.first_values.Out(gates.size(1)).data), stream),
      "MixValues");
}

}  // namespace aft
