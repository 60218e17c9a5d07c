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

void AddText(const std::string& text, inference::ModelInferRequest& request) {
  auto& input = *request.add_inputs();
  input.set_name("text_input");
  input.set_datatype("BYTES");
  input.add_shape(1);
  input.mutable_contents()->add_bytes_contents(text);
}

// One line for each of the likeliest labels, with its probability.
absl::StatusOr<std::string> Lines(const inference::ModelInferResponse& response,
                                  const v1::Model& model, size_t top) {
  const auto& logits = response.outputs_size() == 1
                           ? response.outputs(0).contents().fp32_contents()
                           : inference::InferTensorContents::default_instance().fp32_contents();
  if (logits.empty() || logits.size() != model.labels_size()) {
    return absl::DataLossError(
        absl::StrCat("got ", logits.size(), " logits for ", model.labels_size(), " labels"));
  }
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
  const auto model = client.GetModel(flags.model, options);
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
  const auto response = client.Infer(request, options);
  if (!response.ok()) return response.status();
  if (flags.json) {
    output.Write(JsonLine(*response));
    return absl::OkStatus();
  }
  const auto lines = Lines(*response, *model, flags.top);
  if (!lines.ok()) return lines.status();
  output.Write(output.is_terminal() ? ForTerminal(*lines) : *lines);
  return absl::OkStatus();
}

int RunInfer(const CommonFlags& common, const InferFlags& flags) {
  const absl::StatusOr<std::string> input = ReadText(flags);
  if (!input.ok()) return UsageError(input.status());
  const auto run = [&](AddInput add_input) {
    return RunCall(common, flags, [&](Client& client, const CallOptions& options, Output& output) {
      return Infer(flags, add_input, client, options, output);
    });
  };
  if (flags.file.empty()) {
    return run([&](const v1::Model& /*model*/, inference::ModelInferRequest& request) {
      AddText(*input, request);
    });
  }
  const absl::StatusOr<GreyImage> image = ReadGreyImage(*input);
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
  input->add_option("--text", flags->prompt,
                    "Text to classify; \"-\": read it from standard input");
  input->add_option("--image", flags->file,
                    "File with a grey image of the model's size: PGM, or rows of pixel ids");
  app.add_flag("--invert", flags->invert, "Invert the image, which has dark ink on light paper");
  app.add_option("--top", flags->top, "Number of labels to print, the likeliest first")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  AddCall(app, *flags);
  app.add_flag("--json", flags->json, "Print the response as one JSON object");
  return [&common, flags] { return RunInfer(common, *flags); };
}

}  // namespace aft::client
