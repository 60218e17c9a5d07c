// Tests imports of RWKV. Random checkpoints in the forms of all packages become the same network.

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "model/convert/inspect.h"
#include "model/tokenizer/tokenizers.h"
#include "tests/parity/goldens.h"
#include "tests/support/tolerances.h"
#include "tests/unit/convert/harness.h"

namespace aft {
namespace {

using testing::HasSubstr;

// Returns the tensors with the names of transformers.
TensorMap AsTransformers(const TensorMap& tensors) {
  TensorMap renamed;
  for (const auto& [name, tensor] : tensors) {
    const bool head = absl::StartsWith(name, "head.");
    renamed[absl::StrCat(head ? "" : "rwkv.",
                         absl::StrReplaceAll(name, {{"emb.", "embeddings."},
                                                    {"ln0", "pre_ln"},
                                                    {"att.", "attention."},
                                                    {"ffn.", "feed_forward."},
                                                    {"time_mix_r", "time_mix_receptance"},
                                                    {"time_mix_k", "time_mix_key"},
                                                    {"time_mix_v", "time_mix_value"}}))] = tensor;
  }
  return renamed;
}

// Returns the tensors as flash-linear-attention has them. With `one_shift`, a layer's six shares
// are one tensor, as in its first files.
TensorMap AsFla(const TensorMap& tensors, bool one_shift) {
  TensorMap renamed;
  for (const auto& [name, tensor] : tensors) {
    std::string theirs = absl::StrReplaceAll(name, {{"blocks", "model.layers"},
                                                    {"emb", "model.embeddings"},
                                                    {"ln_out", "model.norm"},
                                                    {"head", "lm_head"},
                                                    {"ln0", "pre_norm"},
                                                    {"ln1", "attn_norm"},
                                                    {"ln2", "ffn_norm"},
                                                    {"att.ln_x", "attn.g_norm"},
                                                    {"att.receptance", "attn.r_proj"},
                                                    {"att.key", "attn.k_proj"},
                                                    {"att.value", "attn.v_proj"},
                                                    {"att.output", "attn.o_proj"},
                                                    {"att.", "attn."}});
    at::Tensor value = tensor;
    const char part = name[name.size() - 2];
    const char number = name.back();
    if (absl::StrContains(name, "att.") && number >= '0' && number <= '2') {
      theirs.resize(theirs.size() - 2);
      absl::StrAppend(&theirs, std::string(1, part), "_lora.lora.",
                      number == '0'   ? "2.bias"
                      : number == '1' ? "0.weight"
                                      : "2.weight");
      value = number == '0' ? tensor.flatten() : tensor.t().contiguous();
    }
    if (!one_shift || !absl::StrContains(name, "att.x_")) renamed[theirs] = value;
  }
  for (int i = 0; one_shift && i < 2; ++i) {
    std::vector<at::Tensor> rows;
    for (const char* part : {"r", "w", "k", "v", "a", "g"}) {
      rows.push_back(tensors.at(absl::StrCat("blocks.", i, ".att.x_", part)).flatten());
    }
    renamed[absl::StrCat("model.layers.", i, ".attn.x_x")] = at::stack(rows);
  }
  return renamed;
}

class RwkvTest : public testing::Test {
 protected:
  absl::StatusOr<Import> From(const TensorMap& tensors) {
    WriteBytes(folder_.File("model.pth"), TorchFileOf(tensors));
    return ImportRwkv(folder_.File("model.pth"), {});
  }
  // Writes a folder of the hub, and imports it.
  absl::StatusOr<Import> FromHub(const TensorMap& tensors, const std::string& config,
                                 bool pickled = false) {
    const std::string dir = folder_.File("hub");
    std::filesystem::remove_all(dir);
    std::filesystem::create_directory(dir);
    WriteBytes(dir + "/config.json", config);
    if (pickled) WriteBytes(dir + "/pytorch_model.bin", TorchFileOf(tensors));
    if (!pickled) AFT_CHECK(WriteSafetensors(dir + "/model.safetensors", tensors).ok());
    return ImportRwkv(dir, {});
  }
  // The file that an import becomes. The server can load it.
  TensorMap Written(const absl::StatusOr<Import>& import) {
    WriteAndRead(import, folder_.File("out"));
    Load(folder_.File("out"), 8);
    TensorMap tensors = ReadSafetensors(folder_.File("out/model.safetensors"))->tensors;
    std::filesystem::remove_all(folder_.File("out"));
    return tensors;
  }
  void ExpectSame(const absl::StatusOr<Import>& import, const TensorMap& expected) {
    const TensorMap tensors = Written(import);
    ASSERT_EQ(tensors.size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      EXPECT_EQ(tensors.at(name).scalar_type(), tensor.scalar_type()) << name;
      EXPECT_TRUE(tensors.at(name).equal(tensor)) << name;
    }
  }

  TempFolder folder_;
  const std::string rwkv_ = R"({"model_type": "rwkv", "layer_norm_epsilon": 1e-5})";
  const std::string rwkv7_ = R"({"model_type": "rwkv7", "norm_eps": 1e-5})";
};

TEST_F(RwkvTest, AFolderOfTransformersGivesItsLogProbabilities) {
  const TensorMap cases = ReadGoldens("rwkv_hub.cases").tensors;
  const std::vector<int32_t> tokens = Ids(cases.at("tokens"));
  const std::string out = folder_.File("out");
  WriteAndRead(ImportRwkv("tests/parity/goldens/rwkv_hub", {}), out);
  EXPECT_LE(ScoreDistance(out, tokens, cases.at("package")), tolerance::kLogProbability);
  EXPECT_LE(ScoreDistance(out, tokens, cases.at("package"), 1), tolerance::kLogProbability);
}

TEST_F(RwkvTest, AllFormsOfVersion4BecomeTheSameNetwork) {
  const TensorMap source = RandomRwkv4(16, 2);
  const auto import = From(source);
  ASSERT_TRUE(import.ok()) << import.status();
  EXPECT_EQ(import->config.mixer.kind, MixerKind::kWkv4);
  const TensorMap made = Written(import);
  const std::string layer = "layers.1.";
  const auto at = [&](const std::string& name) { return source.at("blocks.1." + name); };
  const auto share = [&](const std::string& name) { return 1 - at(name).flatten().to(at::kFloat); };
  EXPECT_TRUE(made.at(layer + "mixer.shift")
                  .equal(at::stack({share("att.time_mix_r"), share("att.time_mix_k"),
                                    share("att.time_mix_v")})));
  EXPECT_TRUE(made.at(layer + "ffn.shift")
                  .equal(at::stack({share("ffn.time_mix_k"), share("ffn.time_mix_r")})));
  EXPECT_TRUE(made.at(layer + "mixer.decay").equal(at("att.time_decay").to(at::kFloat)));
  EXPECT_TRUE(made.at(layer + "mixer.bonus").equal(at("att.time_first").to(at::kFloat)));
  EXPECT_TRUE(made.at(layer + "mixer.k.weight").equal(at("att.key.weight")));
  EXPECT_TRUE(made.at(layer + "ffn.gate.weight").equal(at("ffn.receptance.weight")));
  EXPECT_TRUE(made.at(layer + "norm2.bias").equal(at("ln2.bias").to(at::kFloat)));

  const TensorMap hub = AsTransformers(source);
  ExpectSame(FromHub(hub, rwkv_), made);
  ExpectSame(FromHub(hub, rwkv_, /*pickled=*/true), made);
  ExpectSame(From(hub), made);
  ASSERT_TRUE(WriteSafetensors(folder_.File("one.safetensors"), source).ok());
  ExpectSame(ImportRwkv(folder_.File("one.safetensors"), {}), made);
}

// The first layer has no value gate, and there is no other layer.
TEST_F(RwkvTest, Version7MayHaveOneLayer) {
  TensorMap source = RandomRwkv7(128, 1);
  const TensorMap made = Written(From(source));
  for (const char* name : {"v0", "v1", "v2"}) source.erase(absl::StrCat("blocks.0.att.", name));
  ExpectSame(From(source), made);
  EXPECT_EQ(made.count("layers.0.mixer.v_gate.up.bias"), 0U);
}

TEST_F(RwkvTest, AllFormsOfVersion7BecomeTheSameNetwork) {
  TensorMap source = RandomRwkv7(128, 2);
  const auto import = From(source);
  ASSERT_TRUE(import.ok()) << import.status();
  const MixerConfig& mixer = import->config.mixer;
  EXPECT_EQ(mixer.kind, MixerKind::kWkv7);
  EXPECT_EQ(mixer.heads, 2);
  EXPECT_EQ(mixer.decay_rank, 3);
  EXPECT_EQ(mixer.rate_rank, 4);
  EXPECT_EQ(mixer.value_rank, 5);
  EXPECT_EQ(mixer.gate_rank, 6);
  const TensorMap made = Written(import);
  const std::string layer = "layers.1.mixer.";
  const auto at = [&](const std::string& name) { return source.at("blocks.1.att." + name); };
  for (const auto& [part, blink] : std::vector<std::pair<std::string, std::string>>{
           {"w", "w"}, {"a", "a"}, {"v_gate", "v"}, {"g", "g"}}) {
    EXPECT_TRUE(made.at(layer + part + ".down.weight").equal(at(blink + "1").t()));
    EXPECT_TRUE(made.at(layer + part + ".up.weight").equal(at(blink + "2").t()));
    if (part == "g") continue;
    EXPECT_TRUE(made.at(layer + part + ".up.bias").equal(at(blink + "0").flatten().to(at::kFloat)));
  }
  const at::Tensor shift = made.at(layer + "shift");
  EXPECT_TRUE(shift[1].equal(at("x_w").flatten().to(at::kFloat)));
  EXPECT_TRUE(shift[5].equal(at("x_g").flatten().to(at::kFloat)));
  EXPECT_TRUE(made.at(layer + "bonus").equal(at("r_k").flatten().to(at::kFloat)));
  EXPECT_TRUE(made.at(layer + "key_scale").equal(at("k_k").flatten().to(at::kFloat)));
  EXPECT_TRUE(made.at(layer + "out.weight").equal(at("output.weight")));
  EXPECT_EQ(made.count("layers.0.mixer.v_gate.up.bias"), 0U);

  for (const bool one_shift : {false, true}) {
    ExpectSame(FromHub(AsFla(source, one_shift), rwkv7_), made);
    ExpectSame(From(AsFla(source, one_shift)), made);
  }
  TensorMap narrow = source;
  for (const char* name : {"blocks.0.att.r_k", "blocks.1.att.r_k"}) {
    at::Tensor& bonus = narrow.at(name);
    bonus = bonus.view({4, 32});
  }
  const auto fla = From(AsFla(narrow, /*one_shift=*/false));
  ASSERT_TRUE(fla.ok()) << fla.status();
  EXPECT_EQ(fla->config.mixer.heads, 4);
  // Files of BlinkDL may have a value gate in layer 0, which nothing uses.
  for (const char* name : {"v0", "v1", "v2"}) {
    source.erase(absl::StrCat("blocks.0.att.", name));
  }
  ExpectSame(From(source), made);
  ExpectSame(FromHub(AsFla(source, false), rwkv7_), made);
}

TEST_F(RwkvTest, RefusalsNameTheTensor) {
  const auto import = [this](const TensorMap& tensors) { return Made(From(tensors)); };
  const at::Tensor one = at::ones({16}, at::kBFloat16);
  const std::string layer = "blocks.0.";
  ExpectRefused(RandomRwkv4(16, 2), import,
                {{layer + "att.ln_x.weight", one, "belongs to RWKV-5; only versions 4 and 7"},
                 {layer + "att.time_maa_k", one, "belongs to RWKV-6; only versions 4 and 7"},
                 {layer + "att.time_maa_x", one, "belongs to RWKV-6; only versions 4 and 7"},
                 {layer + "ffn.s_emb.weight", one, "belongs to DeepEmbed"},
                 {layer + "att.time_mix_k", {}, "is missing"},
                 {layer + "att.time_decay", at::ones({15}), "has shape [15], expected [16]"},
                 {layer + "ffn.receptance.weight", at::ones({16, 15}), "has shape [16, 15]"},
                 {layer + "ln1.weight", one / 0, "holds a value that is not finite"},
                 {"blocks.1.ln0.weight", one, "has no place"}});
  ExpectRefused(RandomRwkv7(128, 2), import,
                {{layer + "att.w1", at::ones({3, 128}), "has shape [3, 128], expected [128, any]"},
                 {"blocks.1.att.v2", at::ones({3, 128}), "has shape [3, 128], expected [5, 128]"},
                 {layer + "att.time_state", at::ones({16, 8}), "has shape [16, 8]"},
                 {layer + "att.r_k", at::ones({4, 32}), "has heads of 32 channels, must have 64"},
                 {layer + "att.r_k", {}, "is missing"}});
  EXPECT_THAT(import({{"emb.weight", one}}),
              Refused("tensor 'blocks.0.att.k_k': is missing, and so is time_first of RWKV-4"));
  // The names are those of the file.
  EXPECT_THAT(import({{"model.layers.0.ffn.s_emb.weight", one}}),
              Refused("tensor 'model.layers.0.ffn.s_emb.weight': belongs to DeepEmbed"));
  ExpectRefused(AsFla(RandomRwkv7(128, 2), false), import,
                {{"model.layers.1.attn.w_lora.lora.0.weight", {}, "is missing"},
                 {"model.layers.0.attn.g_norm.bias", {}, "is missing"}});
}

TEST_F(RwkvTest, TunedStatesComeWithTheWeightsOrInAFileOfTheirOwn) {
  const TensorMap source = RandomRwkv7(128, 2);
  TensorMap states;
  for (int i = 0; i < 2; ++i) {
    states[absl::StrCat("blocks.", i, ".att.time_state")] =
        at::arange(8192).remainder(251 + i).to(at::kBFloat16).view({2, 64, 64});
  }
  TensorMap both = source;
  both.insert(states.begin(), states.end());
  const auto import = From(both);
  ASSERT_TRUE(import.ok()) << import.status();
  EXPECT_TRUE(import->config.mixer.initial_state);
  const TensorMap made = Written(import);
  EXPECT_TRUE(made.at("layers.1.mixer.initial_state")
                  .equal(states.at("blocks.1.att.time_state").to(at::kFloat).transpose(1, 2)));

  const std::string model = folder_.File("my-model");
  ASSERT_EQ(WriteImport(model, *From(source)), absl::OkStatus());
  const auto add = [&](const TensorMap& tensors, const std::string& name) {
    WriteBytes(folder_.File("state.pth"), TorchFileOf(tensors));
    return AddRwkvState(folder_.File("state.pth"), {}, model, name);
  };
  const auto memory = [&] {
    const auto sizing = (*Inspect(model))["sizing"];
    return sizing["formats"]["fp32"]["memory_bytes"].get<int64_t>();
  };
  const int64_t without = memory();
  const auto added = add(states, "tuned");
  ASSERT_TRUE(added.ok()) << added.status();
  const LoadedModel loaded = Load(model);
  ASSERT_EQ(loaded.initial_states.size(), 1U);
  const std::string& snapshot = loaded.initial_states.front().snapshot;
  EXPECT_EQ(memory() - without, static_cast<int64_t>(snapshot.size()));
  EXPECT_EQ(*added, model + "/state-tuned.safetensors");
  const TensorMap stored = ReadSafetensors(*added)->tensors;
  ASSERT_EQ(stored.size(), 2U);
  for (const auto& [name, tensor] : stored) EXPECT_TRUE(tensor.to(at::kFloat).equal(made.at(name)));
  EXPECT_THAT(InspectionText(*Inspect(model)), HasSubstr("tuned states  tuned\n"));
  // The model's other forms have it too.
  const std::string quantized = folder_.File("quantized");
  ASSERT_EQ(WriteImport(quantized, *Quantized(model, Number::kBf16)), absl::OkStatus());
  const TensorMap copied = ReadSafetensors(quantized + "/state-tuned.safetensors")->tensors;
  for (const auto& [name, tensor] : stored) EXPECT_TRUE(tensor.equal(copied.at(name)));
  // A broken state, which the server would refuse, is not copied.
  const std::string broken = model + "/state-broken.safetensors";
  WriteBytes(broken, ReadBytes(model + "/model.safetensors"));
  EXPECT_THAT(Quantized(model, Number::kBf16), Refused(broken + ": tensor 'layers.0.mixer"));
  for (const auto& [tensor, problem] : std::vector<std::pair<at::Tensor, std::string>>{
           {at::ones({2, 64, 32}), "tensor 'layers.1.mixer.initial_state': must have"},
           {at::ones({2, 64, 64}) / 0, "tensor 'layers.1.mixer.initial_state': has a value"}}) {
    TensorMap others = stored;
    others["layers.1.mixer.initial_state"] = tensor;
    ASSERT_TRUE(WriteSafetensors(broken, others).ok());
    EXPECT_THAT(Quantized(model, Number::kBf16), Refused(absl::StrCat(broken, ": ", problem)));
    EXPECT_THAT(Inspect(model), Refused(absl::StrCat(broken, ": ", problem)));
  }
  WriteBytes(broken, ReadBytes(*added).substr(0, 100));
  EXPECT_EQ(Quantized(model, Number::kBf16).status().code(), absl::StatusCode::kDataLoss);
  std::filesystem::remove(broken);

  EXPECT_THAT(add(states, "tuned"), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(*added)));
  EXPECT_THAT(add(states, "a/b"), Refused("the name of a state must have 1 to 64 letters"));
  EXPECT_THAT(add({*states.begin()}, "x"), Refused("tensor 'blocks.1.att.time_state': is missing"));
  EXPECT_THAT(add(both, "x"), Refused("have no place in the network"));
  EXPECT_FALSE(std::filesystem::exists(model + "/state-x.safetensors"));
  const std::string fourth = folder_.File("rwkv4");
  ASSERT_EQ(WriteImport(fourth, *From(RandomRwkv4(16, 2))), absl::OkStatus());
  EXPECT_THAT(AddRwkvState(folder_.File("state.pth"), {}, fourth, "x"),
              Refused("only a model of the kind wkv7 takes tuned states"));
}

TEST_F(RwkvTest, TheConfigOfAFolderIsChecked) {
  const TensorMap hub = AsFla(RandomRwkv7(128, 2), false);
  for (const auto& [config, problem] : std::vector<std::pair<std::string, std::string>>{
           {R"({"model_type": "gpt2"})", "model_type: must be rwkv or rwkv7"},
           {R"({"model_type": "rwkv7", "norm_eps": 1e-6})", "norm_eps: must be 1e-5"},
           {R"({"model_type": "rwkv", "layer_norm_epsilon": 1e-6})", "layer_norm_epsilon: must be"},
           {R"({"model_type": "rwkv7", "hidden_act": "gelu"})", "hidden_act: must be sqrelu"},
           {R"({"model_type": "rwkv7", "norm_first": false})", "norm_first: only true"},
           {R"({"model_type": "rwkv7", "tie_word_embeddings": true})", "tie_word_embeddings: only"},
           {"[]", "must be an object"}}) {
    EXPECT_THAT(FromHub(hub, config), Refused(folder_.File("hub/config.json: ") + problem));
  }
}

TEST_F(RwkvTest, TheVocabularyChoosesTheTokenizer) {
  TensorMap source = RandomRwkv4(16, 2);
  source["emb.weight"] = source["head.weight"] = at::zeros({65536, 16});
  EXPECT_EQ(WriteAndRead(From(source), folder_.File("world")).config.tokenizer, "world");
  const auto quantized = Quantized(folder_.File("world"), Number::kBf16);
  ASSERT_TRUE(quantized.ok()) << quantized.status();
  EXPECT_TRUE(quantized->files.at(kWorldFileName) == ShippedWorldVocabulary());
  source["emb.weight"] = source["head.weight"] = at::zeros({260, 16});
  EXPECT_THAT(From(source),
              Refused("the vocabulary has 260 tokens: --tokenizer must name a folder"));
  const std::string path = folder_.File("model.pth");
  EXPECT_THAT(ImportRwkv(path, {.tokenizer = "bytes"}), Refused("the vocabulary has 260 tokens"));
  const auto import = ImportRwkv(path, {.tokenizer = "tests/parity/goldens/gpt2_hub"});
  ASSERT_TRUE(import.ok()) << import.status();
  WriteAndRead(import, folder_.File("out"));
  EXPECT_EQ(import->config.tokenizer, "bpe");
  EXPECT_TRUE(std::filesystem::exists(folder_.File("out/tokenizer.json")));

  const std::string hub = folder_.File("hub");
  const std::string config = R"({"model_type": "rwkv", "eos_token_id": 259})";
  EXPECT_FALSE(FromHub(AsTransformers(source), config).ok());  // it has no tokenizer
  // Only config.json says that this token ends a text.
  WriteBytes(hub + "/tokenizer.json",
             absl::StrReplaceAll(ReadBytes("tests/parity/goldens/gpt2_hub/tokenizer.json"),
                                 {{"<|endoftext|>", "<|end|>"}}));
  WriteAndRead(ImportRwkv(hub, {}), folder_.File("from-hub"));
  const auto inspection = Inspect(folder_.File("from-hub"));
  ASSERT_TRUE(inspection.ok()) << inspection.status();
  EXPECT_EQ((*inspection)["tokenizer"]["kind"], "bpe");
  EXPECT_EQ((*inspection)["tokenizer"]["eos_id"], 259);
  EXPECT_THAT(ImportRwkv(hub, {.keys = {"x"}}), Refused("only a file of torch.save has keys"));

  // A vocabulary of the usual size of World may have another tokenizer.
  source["emb.weight"] = source["head.weight"] = at::zeros({65536, 16});
  EXPECT_EQ(FromHub(AsTransformers(source), config)->config.tokenizer, "world");
  std::filesystem::copy("tests/parity/goldens/gpt2_hub/tokenizer.json", hub);
  EXPECT_EQ(ImportRwkv(hub, {})->config.tokenizer, "bpe");
  EXPECT_EQ(ImportRwkv(hub, {.tokenizer = "world"})->config.tokenizer, "world");
}

}  // namespace
}  // namespace aft
