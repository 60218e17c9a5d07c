// aft-convert: describes checkpoints, and makes them from other packages' weights.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/command_line.h"
#include "base/in_file.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/convert/import.h"
#include "model/convert/inspect.h"

namespace aft {
namespace {

std::vector<std::string> ConvertedFormats() {
  std::vector<std::string> names;
  for (const FormatSpec& spec : kFormats) {
    if (spec.is_converted_to) names.emplace_back(spec.name);
  }
  return names;
}

constexpr char kStateDict[] = "Its state_dict: a .safetensors file, or a .pt or .pth of torch.save";
constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

struct Flags {
  std::string in;
  std::string out;
  bool json = false;
  SizingOptions sizing;
  double bandwidth_gb = 0;
  double gflops = 0;
  LabmlOptions labml;
  std::string activation = "relu";
  std::optional<int64_t> window;
  std::string tensors;
  std::string state;
  RwkvOptions rwkv;  // its keys are those of all other imports too
  AttentionOptions hub;
  std::string attention = "dot_product";
  std::string format;
  Progress progress = ProgressOnStandardError("aft-convert");
};

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

absl::Status RunInspect(const std::string& dir, bool json, const SizingOptions& sizing = {}) {
  AFT_ASSIGN_OR_RETURN(const nlohmann::ordered_json inspection, Inspect(dir, sizing));
  Print(json ? DumpJson(inspection, 2) + "\n" : InspectionText(inspection));
  return absl::OkStatus();
}

// Prints what was read, writes the checkpoint and describes the new folder.
absl::Status Finish(absl::StatusOr<Import> import, Flags& flags, bool name_source) {
  flags.progress.End();
  if (name_source) import = InFile(flags.in, std::move(import));
  AFT_RETURN_IF_ERROR(import.status());
  Print(ImportText(*import));
  std::fprintf(stderr, "aft-convert: writing %s\n", flags.out.c_str());
  AFT_RETURN_IF_ERROR(WriteImport(flags.out, *import, &flags.progress));
  flags.progress.End();
  return RunInspect(flags.out, /*json=*/false);
}

absl::Status RunLabml(Flags& flags) {
  AFT_ASSIGN_OR_RETURN(WeightFiles files, WeightFiles::OpenFile(flags.in, flags.rwkv.keys));
  return Finish(ImportLabml(std::move(files), flags.labml), flags, /*name_source=*/true);
}

absl::Status RunAftPytorch(Flags& flags) {
  AFT_ASSIGN_OR_RETURN(WeightFiles files, WeightFiles::OpenFile(flags.in, flags.rwkv.keys));
  return Finish(ImportAftPytorch(std::move(files), flags.window), flags, /*name_source=*/true);
}

absl::Status RunMixer(Flags& flags) {
  WeightFiles files{TensorMap()};
  if (!flags.tensors.empty()) {
    AFT_ASSIGN_OR_RETURN(files, WeightFiles::OpenFile(flags.tensors, flags.rwkv.keys));
  }
  return Finish(ImportMixer(flags.in, std::move(files)), flags, /*name_source=*/false);
}

absl::Status RunGpt2(Flags& flags) {
  // The errors of ImportGpt2 already name the file in the folder.
  return Finish(ImportGpt2(flags.in, flags.hub, flags.rwkv.keys), flags, /*name_source=*/false);
}

absl::Status RunBert(Flags& flags) {
  return Finish(ImportBert(flags.in, flags.hub, flags.rwkv.keys), flags, /*name_source=*/false);
}

absl::Status RunRwkv(Flags& flags) {
  return Finish(ImportRwkv(flags.in, flags.rwkv), flags, /*name_source=*/false);
}

absl::Status RunRwkvState(const Flags& flags) {
  const std::string name =
      flags.state.empty() ? std::filesystem::path(flags.in).stem().string() : flags.state;
  AFT_ASSIGN_OR_RETURN(const std::string path,
                       AddRwkvState(flags.in, flags.rwkv.keys, flags.out, name));
  Print(absl::StrCat("wrote ", path, ", the initial state \"", name, "\"\n"));
  return absl::OkStatus();
}

absl::Status RunQuantize(Flags& flags) {
  return Finish(Quantized(flags.in, *NumberNamed(flags.format), &flags.progress), flags,
                /*name_source=*/false);
}

void AddFiles(CLI::App& command, Flags& flags, const char* in, const char* about) {
  command.add_option(in, flags.in, about)->required();
  command
      .add_option("OUT_DIR", flags.out,
                  "Folder of the new checkpoint; it must be empty or not exist")
      ->required();
}

// For files of torch.save.
void AddKeys(CLI::App& command, Flags& flags) {
  command
      .add_option("--key", flags.rwkv.keys,
                  "The state_dict of a file of torch.save is under this key of a dict; repeat it "
                  "for nested "
                  "dicts")
      ->expected(1);
}

void AddHub(CLI::App& command, Flags& flags) {
  AddFiles(command, flags, "IN_DIR",
           "config.json, model.safetensors or pytorch_model.bin or the shards and index of either, "
           "tokenizer.json or vocab.json and merges.txt");
  AddKeys(command, flags);
  command
      .add_option("--attention", flags.attention,
                  "The model's own attention, or LSG's block-local instead")
      ->check(CLI::IsMember({"dot_product", "block_local"}))
      ->capture_default_str();
  command.add_option("--block-size", flags.hub.block_size, "block_local: tokens of a block")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_flag_callback(
      "--no-global-token", [&flags] { flags.hub.global_token = false; },
      "block_local: not every token sees the first one");
}

void AddSizingFlags(CLI::App& inspect, Flags& flags) {
  inspect.add_option("--slots", flags.sizing.slots, "slots of the server's config")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  inspect
      .add_option("--max-step-tokens", flags.sizing.max_step_tokens,
                  "max_step_tokens of the server's config; more than --slots; default: 256, or "
                  "--slots + 1 if that is more")
      ->check(CLI::Range(2, 1 << 20));
  inspect
      .add_option("--max-batch-tokens", flags.sizing.max_batch_tokens,
                  "batch.max_tokens of the server's config, for encoders")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  inspect.add_option("--threads", flags.sizing.threads, "intra_op_threads of the server's config")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  inspect
      .add_option("--context", flags.sizing.context,
                  "Tokens of a sequence, for the operations and traffic of a state that grows")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  inspect
      .add_option("--bandwidth", flags.bandwidth_gb,
                  "Bandwidth of the memory in 1e9 bytes per second; prints the most tokens/s")
      ->check(Between(1e-3, 1e6));
  inspect
      .add_option("--gflops", flags.gflops,
                  "1e9 operations per second of all threads; prints the most tokens/s")
      ->check(Between(1e-3, 1e9));
}

int Run(int argc, char** argv) {
  CLI::App app("Describes checkpoints, and makes them from other packages' weights.",
               "aft-convert");
  app.footer("Exit codes: 0 done, 1 error, 2 wrong usage");
  app.require_subcommand(1);
  Flags flags;

  CLI::App& inspect = *app.add_subcommand(
      "inspect", "Describe a checkpoint, and the resources that serving it on the CPU takes");
  inspect.add_option("DIR", flags.in, "The checkpoint's folder")->required();
  inspect.add_flag("--json", flags.json, "One JSON object");
  AddSizingFlags(inspect, flags);

  CLI::App& labml = *app.add_subcommand(
      "labml", "From labml_nn: an AFT language model, or a bare AFTLocal module");
  AddFiles(labml, flags, "IN", kStateDict);
  AddKeys(labml, flags);
  labml.add_option(
      "--chars", flags.labml.chars_path,
      "A language model's vocabulary: a JSON array of characters, in the order of ids");
  labml.add_option("--activation", flags.activation, "Activation of the feed-forward layers")
      ->check(CLI::IsMember({"relu", "gelu", "gelu_tanh"}))
      ->capture_default_str();
  labml
      .add_option("--window", flags.labml.window, "The window, for a state_dict without local_mask")
      ->check(CLI::NonNegativeNumber);
  labml.add_flag("--bidirectional", flags.labml.bidirectional,
                 "The module is called without a causal mask");

  CLI::App& aft_pytorch =
      *app.add_subcommand("aft-pytorch", "From aft-pytorch: AFTFull, AFTSimple or AFTLocal");
  AddFiles(aft_pytorch, flags, "IN", kStateDict);
  AddKeys(aft_pytorch, flags);
  aft_pytorch
      .add_option("--window", flags.window,
                  "The module is an AFTLocal with this s, which its state_dict does not have")
      ->check(CLI::NonNegativeNumber);

  CLI::App& mixer = *app.add_subcommand(
      "mixer", "A bare mixer from its config; a projection that is not given is the identity");
  AddFiles(mixer, flags, "CONFIG.json", "A config.json of the architecture mixer");
  mixer.add_option("--tensors", flags.tensors,
                   "A file with tables or projections of the mixer (w.full, conv.w, qkv.weight, "
                   "out.bias, ...)");
  AddKeys(mixer, flags);

  CLI::App& gpt2 = *app.add_subcommand("gpt2", "From a Hugging Face GPT-2 folder");
  AddHub(gpt2, flags);
  gpt2.add_flag("--full-decode", flags.hub.full_decode,
                "block_local: generate with full attention, as the reference does");
  CLI::App& bert = *app.add_subcommand(
      "bert", "From a Hugging Face folder of RoBERTa, or of BERT, which then takes only token ids");
  AddHub(bert, flags);

  CLI::App& rwkv = *app.add_subcommand("rwkv", "From RWKV-4 or RWKV-7");
  AddFiles(rwkv, flags, "IN",
           "BlinkDL's .pth or a .safetensors file, or a folder of Hugging Face: RwkvForCausalLM or "
           "flash-linear-attention's RWKV7ForCausalLM");
  rwkv.add_option(
      "--tokenizer", flags.rwkv.tokenizer,
      "world, bytes, or a folder with tokenizer.json; default: the tokenizer.json of IN, "
      "otherwise world for a vocabulary of 65,536 and bytes for 256");
  AddKeys(rwkv, flags);
  CLI::App& state = *app.add_subcommand(
      "rwkv-state",
      "Add a tuned state to an RWKV-7, from which requests can begin (initial_state)");
  state.add_option("IN", flags.in, "A file of state tuning, with blocks.N.att.time_state alone")
      ->required();
  state.add_option("DIR", flags.out, "The checkpoint's folder")->required();
  state.add_option("--name", flags.state, "Name of the state; default: that of the file");
  AddKeys(state, flags);

  CLI::App& quantize = *app.add_subcommand(
      "quantize",
      "Store a checkpoint's matrices in fewer bits; it becomes the model that weight_format makes");
  AddFiles(quantize, flags, "IN_DIR", "The checkpoint's folder");
  quantize.add_option("--format", flags.format, "Format of the matrices in the file")
      ->check(CLI::IsMember(ConvertedFormats()))
      ->required();

  if (const auto code = ParseCommandLine(app, argc, argv, {.usage_code = kExitUsage})) return *code;
  flags.labml.activation = flags.activation == "relu"   ? Activation::kRelu
                           : flags.activation == "gelu" ? Activation::kGelu
                                                        : Activation::kGeluTanh;
  flags.hub.block_local = flags.attention == "block_local";
  const CLI::App& hub = bert.parsed() ? bert : gpt2;
  for (const char* name : {"--block-size", "--no-global-token", "--full-decode"}) {
    if (hub.get_option_no_throw(name) != nullptr && hub.count(name) > 0 && !flags.hub.block_local) {
      app.exit(CLI::ValidationError(name, "needs --attention block_local"));
      return kExitUsage;
    }
  }
  int64_t& step = flags.sizing.max_step_tokens;
  if (inspect.count("--max-step-tokens") == 0) {
    step = std::max<int64_t>(step, flags.sizing.slots + 1);
  } else if (step <= flags.sizing.slots) {
    app.exit(CLI::ValidationError("--max-step-tokens", "must be more than --slots"));
    return kExitUsage;
  }
  // Reading and converting gigabytes takes minutes.
  if (!inspect.parsed()) std::fprintf(stderr, "aft-convert: reading %s\n", flags.in.c_str());
  flags.sizing.bandwidth = 1e9 * flags.bandwidth_gb;
  flags.sizing.flops = 1e9 * flags.gflops;
  const absl::Status status = inspect.parsed() ? RunInspect(flags.in, flags.json, flags.sizing)
                              : labml.parsed() ? RunLabml(flags)
                              : aft_pytorch.parsed() ? RunAftPytorch(flags)
                              : mixer.parsed()       ? RunMixer(flags)
                              : quantize.parsed()    ? RunQuantize(flags)
                              : rwkv.parsed()        ? RunRwkv(flags)
                              : state.parsed()       ? RunRwkvState(flags)
                              : bert.parsed()        ? RunBert(flags)
                                                     : RunGpt2(flags);
  if (status.ok()) return kExitOk;
  flags.progress.End();
  std::fprintf(stderr, "aft-convert: %s\n", std::string(status.message()).c_str());
  return kExitFailed;
}

}  // namespace
}  // namespace aft

int main(int argc, char** argv) {
  try {
    return aft::Run(argc, argv);
  } catch (const std::exception& error) {  // LibTorch reports by exception
    std::fprintf(stderr, "aft-convert: %s\n", error.what());
    return aft::kExitFailed;
  }
}
