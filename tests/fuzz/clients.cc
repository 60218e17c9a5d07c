// The file of known clients. In an accepted file, every client can be told from all others.
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/strip.h"
#include "aft/config/v1/clients.pb.h"
#include "base/check.h"
#include "server/config/checks.h"
#include "server/config/clients_file.h"
#include "tests/fuzz/field_path.h"
#include "tests/fuzz/target.h"

namespace aft::fuzz {

// A client takes 300 bytes in addition to its name and hash. The file comes from the operator.
const MemoryBound kMemory = {.fixed = 1 << 20, .per_byte = 256};

}  // namespace aft::fuzz

void aft::fuzz::RunInput(const uint8_t* data, size_t size) {
  using namespace aft;
  using namespace aft::server;
  const auto file = ParseClientsFile(fuzz::AsText(data, size), "file");
  if (!file.ok()) {
    absl::string_view message = file.status().message();
    int line = 0;
    int column = 0;
    const bool syntax =
        std::sscanf(std::string(message).c_str(), "file:%d:%d: ", &line, &column) == 2;
    AFT_CHECK(absl::IsInvalidArgument(file.status()));
    AFT_CHECK(syntax || (absl::ConsumePrefix(&message, "file: ") &&
                         fuzz::BeginsWithField(message, config::v1::ClientsFile::descriptor())));
    return;
  }
  std::set<std::string> seen;
  for (const KnownClient& known : file->clients) {
    const Client& client = *known.client;
    AFT_CHECK(CheckName("name", client.name).ok() && seen.insert("name " + client.name).second);
    AFT_CHECK(client.weight >= 0.01 && client.weight <= 100);
    AFT_CHECK(client.max_slots >= 0 && client.max_queued_requests >= 0);
    AFT_CHECK(client.max_memory_bytes >= 0);
    AFT_CHECK(!known.token_sha256.empty() || !known.certificates.empty());
    for (const std::string& hash : known.token_sha256) {
      AFT_CHECK(hash.size() == 32 && seen.insert("token " + hash).second);
    }
    for (const std::string& name : known.certificates) {
      AFT_CHECK(!name.empty() && seen.insert("certificate " + name).second);
    }
  }
}
