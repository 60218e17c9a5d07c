#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/aftctl/image.h"
#include "client/aftctl/stream.h"

namespace aft::client {
namespace {

struct InferFlags : StreamFlags {
  bool invert = false;
  size_t top = 3;
};

// Adds the input tensor to a request once the model is known.
using AddInput =
    absl::FunctionRef<void(const v1::Model& model, inference::ModelInferRequest& request)>;

void AddImage(const GreyImage& image, const std::vector<int64_t>& ids,
              inference::ModelInferRequest& request) {
  auto& input = *request.add_inputs();
  input.set_name("input_ids");
  input.set_datatype("INT64");
  for (const int64_t size : {int64_t{1}, image.height, image.width}) input.add_shape(size);
  input.mutable_contents()->mutable_int64_contents()->Add(ids.begin(), ids.end());
}

void AddTextInput(const std::vector<std::string>& texts, inference::ModelInferRequest& request) {
  auto& input = *request.add_inputs();
  input.set_name("text_input");
  input.set_datatype("BYTES");
  input.add_shape(static_cast<int64_t>(texts.size()));
  for (const std::string& text : texts) input.mutable_contents()->add_bytes_contents(text);
}

// Splits a response to `rows` texts or images into the responses that each would get alone.
absl::StatusOr<std::vector<inference::ModelInferResponse>> SplitRows(
    const inference::ModelInferResponse& response, int rows, int labels) {
  const auto& logits = response.outputs_size() == 1
                           ? response.outputs(0).contents().fp32_contents()
                           : inference::InferTensorContents::default_instance().fp32_contents();
  if (logits.size() != int64_t{rows} * labels) {
    return absl::DataLossError(
        absl::StrCat("got ", logits.size(), " logits for ", rows, " times ", labels, " labels"));
  }
  std::vector<inference::ModelInferResponse> split(static_cast<size_t>(rows), response);
  for (int row = 0; row < rows; ++row) {
    auto& output = *split[static_cast<size_t>(row)].mutable_outputs(0);
    output.clear_shape();
    for (const int size : {1, labels}) output.add_shape(size);
    const auto first = logits.begin() + ptrdiff_t{row} * labels;
    output.mutable_contents()->mutable_fp32_contents()->Assign(first, first + labels);
  }
  return split;
}

// Returns one line for each of the likeliest labels, with its probability.
std::string Lines(const inference::ModelInferResponse& response, const v1::Model& model,
                  size_t top) {
  const auto& logits = response.outputs(0).contents().fp32_contents();
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - double{largest});
  std::vector<int> order(static_cast<size_t>(logits.size()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return logits.Get(a) > logits.Get(b); });
  order.resize(std::min(order.size(), top));
  std::string lines;
  for (const int i : order) {
    absl::StrAppendFormat(&lines, "%s\t%.4f\n", model.labels(i),
                          std::exp(double{logits.Get(i)} - double{largest}) / sum);
  }
  return lines;
}

absl::Status Infer(const InferFlags& flags, AddInput add_input, Client& client,
                   const CallOptions& options, Output& output) {
  const auto model = client.GetModel(flags.model, flags.model_version, options);
  if (!model.ok()) return model.status();
  if (model->labels().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model \"", model->name(), "\" is not a classifier"));
  }
  inference::ModelInferRequest request;
  request.set_model_name(model->name());
  request.set_model_version(flags.model_version);
  add_input(*model, request);
  request.add_outputs()->set_name("logits");
  (*request.mutable_parameters())["binary_data_output"].set_bool_param(false);
  AFT_ASSIGN_OR_RETURN(const auto response, client.Infer(request, options));
  const auto count = static_cast<int>(request.inputs(0).shape(0));
  AFT_ASSIGN_OR_RETURN(const auto rows, SplitRows(response, count, model->labels_size()));
  std::string shown;
  for (const inference::ModelInferResponse& row : rows) {
    const bool apart = !flags.json && flags.top > 1 && !shown.empty();
    absl::StrAppend(&shown, apart ? "\n" : "",
                    flags.json ? JsonLine(row) : Lines(row, *model, flags.top));
  }
  output.Write(!flags.json && output.is_terminal() ? ForTerminal(shown) : shown);
  return absl::OkStatus();
}

// Reads the texts that the flags name, of which "-" is standard input.
absl::StatusOr<std::vector<std::string>> ReadTexts(const InferFlags& flags) {
  std::vector<std::string> texts;
  for (const std::string& text : flags.texts) {
    StreamFlags one;
    one.prompt = text;
    AFT_ASSIGN_OR_RETURN(texts.emplace_back(), ReadText(one));
  }
  return texts;
}

int RunInfer(const CommonFlags& common, const InferFlags& flags) {
  const auto run = [&](AddInput add_input) {
    return RunCall(common, flags, [&](Client& client, const CallOptions& options, Output& output) {
      return Infer(flags, add_input, client, options, output);
    });
  };
  if (flags.file.empty()) {
    const auto texts = ReadTexts(flags);
    if (!texts.ok()) return UsageError(texts.status());
    return run([&](const v1::Model& /*model*/, inference::ModelInferRequest& request) {
      AddTextInput(*texts, request);
    });
  }
  const absl::StatusOr<std::string> file = ReadText(flags);
  if (!file.ok()) return UsageError(file.status());
  const absl::StatusOr<GreyImage> image = ReadGreyImage(*file);
  if (!image.ok()) {
    return UsageError(
        absl::InvalidArgumentError(absl::StrCat(flags.file, ": ", image.status().message())));
  }
  return run([&](const v1::Model& model, inference::ModelInferRequest& request) {
    AddImage(*image, PixelIds(*image, model.vocab_size(), flags.invert), request);
  });
}

}  // namespace

Command AddInfer(CLI::App& app, const CommonFlags& common) {
  auto flags = std::make_shared<InferFlags>();
  CLI::Option_group* const input = app.add_option_group("input");
  input->require_option(1);
  input
      ->add_option("--text", flags->texts,
                   "Text to classify; repeat it to classify several in one call. \"-\": read it "
                   "from standard input")
      ->allow_extra_args(false);
  input->add_option("--image", flags->file,
                    "File with a grey image of the model's size: PGM, or rows of pixel ids");
  app.add_flag("--invert", flags->invert, "Invert the image, which has dark ink on light paper");
  app.add_option("--top", flags->top, "Number of labels to print, the likeliest first")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  AddCall(app, *flags);
  app.add_flag("--json", flags->json,
               "Print the response to each text or image alone, as one JSON object on a line");
  return [&common, flags] { return RunInfer(common, *flags); };
}

}  // namespace aft::client
