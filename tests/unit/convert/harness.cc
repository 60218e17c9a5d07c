#include "tests/unit/convert/harness.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ATen/ops/empty_like.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/tensor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/layers/mixer_layer.h"
#include "model/layers/weights.h"
#include "model/network/activations.h"
#include "model/network/cpu_network.h"
#include "model/network/weight_bytes.h"
#include "model/runtime/cpu_encoder_runner.h"
#include "model/runtime/parallel.h"
#include "model/state/state_pool.h"
#include "tests/parity/goldens.h"
#include "tests/support/collect.h"
#include "tests/support/torch_archive.h"

namespace aft {
namespace {

// Random bf16 tensors: those of a network, and those of each layer, whose names begin with
// "blocks.N.".
using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;
TensorMap RandomRwkv(int64_t d, int64_t layers, const Shapes& layer_shapes) {
  TensorMap tensors;
  const auto add = [&](const std::string& prefix, const Shapes& shapes) {
    for (const auto& [name, shape] : shapes) {
      tensors[prefix + name] = at::randn(shape, at::kBFloat16);
    }
  };
  add("", {{"emb.weight", {256, d}},
           {"head.weight", {256, d}},
           {"ln_out.weight", {d}},
           {"ln_out.bias", {d}},
           {"blocks.0.ln0.weight", {d}},
           {"blocks.0.ln0.bias", {d}}});
  for (int64_t i = 0; i < layers; ++i) {
    const std::string prefix = absl::StrCat("blocks.", i, ".");
    for (const char* norm : {"ln1", "ln2"}) {
      add(prefix + norm, {{".weight", {d}}, {".bias", {d}}});
    }
    for (const char* part : {"receptance", "key", "value", "output"}) {
      add(prefix + "att." + part, {{".weight", {d, d}}});
    }
    add(prefix + "ffn.", {{"key.weight", {3 * d, d}}, {"value.weight", {d, 3 * d}}});
    add(prefix, layer_shapes);
  }
  return tensors;
}

// Returns the steps of a text. The first step scores the tokens before `first_generated`. If more
// tokens follow, a new sequence reads the same tokens and samples one. Each further token is then
// scored in a step of its own.
std::vector<StepRow> Rows(const std::vector<int32_t>& tokens, int64_t first_generated) {
  const auto count = static_cast<int64_t>(tokens.size());
  std::vector<StepRow> rows;
  const auto score = [&](int64_t begin, int64_t end) {
    StepRow& row = rows.emplace_back();
    row.slot = 0;
    row.first_position = begin;
    row.tokens.assign(tokens.begin() + begin, tokens.begin() + end);
    row.targets.assign(tokens.begin() + begin + 1, tokens.begin() + std::min(end + 1, count));
    row.output = row.targets.empty() ? RowOutput::kNone : RowOutput::kScore;
  };
  score(0, first_generated);
  if (first_generated == count) return rows;
  rows.push_back({0, 0, rows[0].tokens, RowOutput::kLast});
  for (int64_t t = first_generated; t < count; ++t) score(t, t + 1);
  return rows;
}

}  // namespace

Checkpoint WriteAndRead(const absl::StatusOr<Import>& import, const std::string& dir) {
  if (!import.ok()) ADD_FAILURE() << import.status();
  AFT_CHECK(import.ok());
  const absl::Status written = WriteImport(dir, *import);
  if (!written.ok()) ADD_FAILURE() << written;
  absl::StatusOr<Checkpoint> checkpoint = ReadCheckpoint(dir);
  if (!checkpoint.ok()) ADD_FAILURE() << checkpoint.status();
  AFT_CHECK(checkpoint.ok());
  return *std::move(checkpoint);
}

absl::Status Made(const absl::StatusOr<Import>& import) {
  AFT_RETURN_IF_ERROR(import.status());
  for (const auto& [name, tensor] : import->tensors) {
    AFT_RETURN_IF_ERROR(tensor.make().status());
  }
  return absl::OkStatus();
}

TensorMap RandomRwkv4(int64_t d, int64_t layers) {
  Shapes shapes = {
      {"ffn.receptance.weight", {d, d}}, {"att.time_decay", {d}}, {"att.time_first", {d}}};
  for (const char* mix :
       {"att.time_mix_r", "att.time_mix_k", "att.time_mix_v", "ffn.time_mix_k", "ffn.time_mix_r"}) {
    shapes.emplace_back(mix, std::vector<int64_t>{1, 1, d});
  }
  return RandomRwkv(d, layers, shapes);
}

TensorMap RandomRwkv7(int64_t d, int64_t layers) {
  Shapes shapes = {{"att.r_k", {d / 64, 64}}, {"att.ln_x.weight", {d}}, {"att.ln_x.bias", {d}},
                   {"att.w1", {d, 3}},        {"att.w2", {3, d}},       {"att.a1", {d, 4}},
                   {"att.a2", {4, d}},        {"att.v1", {d, 5}},       {"att.v2", {5, d}},
                   {"att.g1", {d, 6}},        {"att.g2", {6, d}}};
  for (const char* table : {"att.w0", "att.a0", "att.v0", "att.x_r", "att.x_w", "att.x_k",
                            "att.x_v", "att.x_a", "att.x_g", "att.k_k", "att.k_a", "ffn.x_k"}) {
    shapes.emplace_back(table, std::vector<int64_t>{1, 1, d});
  }
  return RandomRwkv(d, layers, shapes);
}

std::string TorchFileOf(const TensorMap& tensors) {
  std::vector<std::pair<std::string, std::string>> items;
  std::vector<std::pair<std::string, std::string>> records = {{"model/data.pkl", ""}};
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor data = tensor.contiguous();
    const std::string key = absl::StrCat(items.size());
    const char* const type = data.scalar_type() == at::kFloat ? "Float" : "BFloat16";
    items.emplace_back(name, pickled::Tensor(pickled::Storage(type, key, data.numel()), 0,
                                             data.sizes().vec(), data.strides().vec()));
    records.emplace_back(
        "model/data/" + key,
        std::string(static_cast<const char*>(data.const_data_ptr()), data.nbytes()));
  }
  records[0].second = pickled::Program(pickled::Dict(items));
  return ZipOf(records, /*wide=*/true);
}

at::Tensor EncodeModule(const Checkpoint& checkpoint, const at::Tensor& x) {
  auto network = CpuNetwork::Create(checkpoint.config, checkpoint.tensors);
  if (!network.ok()) ADD_FAILURE() << network.status();
  AFT_CHECK(network.ok());
  const auto encoder = *CpuEncoderRunner::Create(*std::move(network), {});
  const auto vectors = *encoder->Encode({{.vectors = Floats(x)}});
  return at::tensor(vectors.at(0)).view(x.sizes());
}

// No runner decodes with a bare mixer, so this calls its layer.
at::Tensor RunModule(const Checkpoint& checkpoint, const at::Tensor& x, int64_t chunk) {
  const NetworkConfig& config = checkpoint.config;
  auto arena = *WeightArena::Create(CountWeightBytes(config, Number::kFp32).total(), Number::kFp32);
  const auto layer =
      *MixerLayer::Create(config, 0, checkpoint.tensors, {config.max_seq_len}, arena);
  const ParallelExecutor executor(1);
  auto activations = *Activations::Create(config, chunk, layer.mixer().scratch_floats(), executor);
  auto states = *StatePool::Create({layer.mixer().state_spec()}, 1);
  const StateView state = states.part(0);
  const at::Tensor in = x.contiguous();
  at::Tensor y = at::empty_like(in);
  const int32_t slot = 0;
  for (int64_t t = 0; t < in.size(0); t += chunk) {
    const int64_t tokens = std::min(chunk, in.size(0) - t);
    const int64_t offsets[] = {0, tokens};
    layer.Forward(in.const_data_ptr<float>() + t * in.size(1), {1, &slot, &t, offsets, nullptr},
                  &state, activations.wide, {}, activations.mixed, activations.shared);
    layer.Output(activations.mixed, tokens, y.data_ptr<float>() + t * in.size(1), Activation::kNone,
                 activations.shared);
  }
  return y;
}

LoadedModel Load(const std::string& dir, int64_t max_step_tokens) {
  LoadOptions options;
  options.checkpoint_dir = dir;
  options.weight_format = "fp32";
  options.slots = 1;
  options.max_step_tokens = max_step_tokens;
  options.intra_op_threads = 1;
  auto model = LoadModel(options);
  if (!model.ok()) ADD_FAILURE() << model.status();
  AFT_CHECK(model.ok());
  return *std::move(model);
}

double ScoreDistance(const std::string& dir, const std::vector<int32_t>& tokens,
                     const at::Tensor& expected, int64_t first_generated) {
  const LoadedModel model = Load(dir, static_cast<int64_t>(tokens.size()));
  SamplingParams params;
  params.top_logprobs = 20;

  const auto first_row = static_cast<int64_t>(tokens.size()) - expected.size(0);
  double distance = 0;
  int64_t compared = 0;
  const auto compare = [&](int64_t position, TokenId id, float logprob) {
    ++compared;
    const auto want = expected[position - first_row][id].item<float>();
    const double off = std::abs(logprob - want);
    if (std::isnan(off) || off > distance) distance = off;  // a NaN stays, because none is larger
  };
  for (const StepRow& row : Rows(tokens, first_generated)) {
    if (row.first_position == 0) {
      AFT_CHECK(model.runner->BindSlot(0, NewSequence(), {params}).ok());
    }
    const auto ticket = model.runner->Submit({{row}});
    AFT_CHECK(ticket.ok());
    const auto output = Collect(*model.runner, *ticket);
    AFT_CHECK(output.ok());
    for (size_t i = 0; i < row.targets.size(); ++i) {
      const int64_t position = row.first_position + static_cast<int64_t>(i);
      if (position < first_row) continue;
      const SampledToken& scored = output->scored.at(0).at(i);
      AFT_CHECK(scored.id == row.targets[i] && scored.top.size() == 20);
      compare(position, scored.id, scored.logprob);
      for (const TokenLogprob& other : scored.top) compare(position, other.id, other.logprob);
    }
  }
  // The last token has no target, so its row is not compared.
  AFT_CHECK(compared == 21 * (expected.size(0) - 1));
  return distance;
}

std::vector<int32_t> Ids(const at::Tensor& tokens) {
  const auto* data = tokens.const_data_ptr<int64_t>();
  return {data, data + tokens.numel()};
}

void ExpectRefused(const TensorMap& tensors,
                   const std::function<absl::Status(const TensorMap&)>& import,
                   const std::vector<Damage>& damages) {
  for (const Damage& damage : damages) {
    TensorMap damaged = tensors;
    damaged.erase(damage.name);
    if (damage.value.defined()) damaged[damage.name] = damage.value;
    EXPECT_THAT(import(damaged),
                Refused(absl::StrCat("tensor '", damage.name, "': ", damage.problem)));
  }
}

}  // namespace aft
