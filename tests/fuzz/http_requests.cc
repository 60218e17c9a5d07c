// Bodies of OpenAI's API. Accepted bodies are checked; the error for a refused body is JSON that
// names the field. The first byte chooses the endpoint.
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/check.h"
#include "google/protobuf/wrappers.pb.h"
#include "server/api/openai/embeddings_exchange.h"
#include "server/api/openai/error_page.h"
#include "server/api/openai/generation_exchange.h"
#include "server/api/openai/responses_exchange.h"
#include "server/api/openai/token_exchange.h"
#include "tests/fuzz/target.h"

namespace aft::fuzz {

// What the call charges for a byte, plus the body itself.
const MemoryBound kMemory = {.fixed = 1 << 18, .per_byte = server::openai::kBytesPerJsonByte + 4};

}  // namespace aft::fuzz

void aft::fuzz::RunInput(const uint8_t* data, size_t size) {
  using namespace aft::server::openai;
  if (size == 0) return;
  std::unique_ptr<JsonExchange> exchange;
  switch (data[0] % 6) {
    case 0:
    case 1:
      exchange = std::make_unique<GenerationExchange>(/*chat=*/data[0] % 6 == 1, "id");
      break;
    case 5:
      exchange = std::make_unique<ResponsesExchange>("id");
      break;
    case 2:
      exchange = std::make_unique<EmbeddingsExchange>(/*classify=*/false, "id");
      break;
    default:
      exchange = std::make_unique<TokenExchange>(/*detokenize=*/data[0] % 6 == 3, "id");
  }
  static_cast<google::protobuf::StringValue&>(exchange->request())
      .set_value(std::string(fuzz::AsText(data + 1, size - 1)));
  const absl::Status status = exchange->CheckRequest();
  if (status.ok()) {
    AFT_CHECK(exchange->model_name().field == "model");
    return;
  }
  // NOT_FOUND: the id of the previous response is malformed.
  AFT_CHECK(absl::IsInvalidArgument(status) || absl::IsNotFound(status));
  AFT_CHECK(!status.message().empty());
  const Json error = Json::parse(ErrorText(status, "id"), nullptr, /*allow_exceptions=*/false);
  AFT_CHECK(error.is_object() && error["error"]["message"].is_string());
}
