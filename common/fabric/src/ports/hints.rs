//! What the environment says about devices, in the words of others: which ones a
//! scheduler gave this pod (`PCIDEVICE_*`), which ones NCCL should use
//! (`NCCL_IB_HCA`, `NCCL_IB_GID_INDEX`). Hints narrow a choice and never empty it:
//! they were not written for us. Reads no environment by itself but in `from_env`.

/// Variables of device plugins; each lists PCI addresses.
const PCI_PREFIX: &str = "PCIDEVICE_";
const HCA: &str = "NCCL_IB_HCA";
const GID_INDEX: &str = "NCCL_IB_GID_INDEX";

/// What the environment says about devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    hcas: Option<Hcas>,
    gid_index: Option<u8>,
    /// PCI addresses that this pod was given, each with the variable that says so.
    given: Vec<(String, String)>,
}

/// A list of devices as NCCL takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hcas {
    /// `^`: all but these.
    without: bool,
    /// `=`: names are whole, not beginnings.
    whole: bool,
    /// A name, and a port where one is meant.
    names: Vec<(String, Option<u8>)>,
}

impl Hints {
    /// Takes them from the environment of this process.
    pub fn from_env() -> Self {
        let text = |(key, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((key.into_string().ok()?, value.into_string().ok()?))
        };
        Self::of(std::env::vars_os().filter_map(text))
    }

    /// Takes them from these variables. What cannot be read is no hint.
    pub fn of(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut hints = Self::default();
        for (key, value) in variables {
            if key == HCA {
                hints.hcas = Hcas::parse(&value);
            } else if key == GID_INDEX {
                hints.gid_index = value.trim().parse().ok();
            } else if key.starts_with(PCI_PREFIX) {
                let addresses = value.split(',').map(str::trim).filter(|it| is_pci_address(it));
                hints.given.extend(addresses.map(|it| (it.to_owned(), key.clone())));
            }
        }
        // The environment has no order; messages should.
        hints.given.sort();
        hints
    }

    /// The PCI addresses that this pod was given, each with the variable that says so.
    pub fn devices_given(&self) -> &[(String, String)] {
        &self.given
    }

    /// The place in a table of addresses that NCCL would use.
    pub(super) fn gid_index(&self) -> Option<u8> {
        self.gid_index
    }

    /// The variable that gave this pod the device, if one did.
    pub(super) fn given(&self, pci: Option<&str>) -> Option<&str> {
        let of = |(address, _): &&(String, String)| pci.is_some_and(|it| it == address);
        self.given.iter().find(of).map(|(_, variable)| variable.as_str())
    }

    /// The variable that means this port, if one does.
    pub(super) fn names(&self, device: &str, port: u8) -> Option<&'static str> {
        self.hcas.as_ref().is_some_and(|hcas| hcas.mean(device, port)).then_some(HCA)
    }
}

impl Hcas {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (without, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (whole, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let name = |item: &str| match item.trim().split_once(':') {
            Some((name, port)) => (name.to_owned(), port.parse().ok()),
            None => (item.trim().to_owned(), None),
        };
        let names: Vec<_> = text.split(',').map(name).filter(|(it, _)| !it.is_empty()).collect();
        (!names.is_empty()).then_some(Self { without, whole, names })
    }

    fn mean(&self, device: &str, port: u8) -> bool {
        let named = self.names.iter().any(|(name, of_port)| {
            let fits = if self.whole { device == name } else { device.starts_with(name.as_str()) };
            fits && of_port.is_none_or(|it| it == port)
        });
        named != self.without
    }
}

/// Whether this is written as `0000:3b:00.1`; other things of a plugin are in JSON.
fn is_pci_address(text: &str) -> bool {
    let hex = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts: Vec<_> = text.split([':', '.']).collect();
    parts.len() == 4 && parts.iter().all(|part| hex(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hints(key: &str, value: &str) -> Hints {
        Hints::of([(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn a_list_for_nccl_is_of_beginnings_of_names_unless_it_says_otherwise() {
        let means = |list: &str, device: &str, port| {
            hints("NCCL_IB_HCA", list).names(device, port) == Some("NCCL_IB_HCA")
        };
        assert!(means("mlx5", "mlx5_3", 1) && !means("mlx5", "mlx4_0", 1));
        assert!(means("mlx5_1", "mlx5_10", 1), "a beginning");
        assert!(means("=mlx5_1", "mlx5_1", 1) && !means("=mlx5_1", "mlx5_10", 1), "whole");
        assert!(means("mlx5_0, mlx5_2:2", "mlx5_2", 2) && !means("mlx5_2:2", "mlx5_2", 1));
        assert!(means("=mlx5_0:1,mlx5_1:1", "mlx5_1", 1), "= is of the whole list");
        assert!(!means("^mlx5_1", "mlx5_10", 1) && means("^mlx5_1", "mlx5_2", 1), "all but");
        assert!(means("^=mlx5_1", "mlx5_10", 1) && !means("^=mlx5_1", "mlx5_1", 1));
        assert!(means("^mlx5_0:1", "mlx5_0", 2), "all but one port");
        for nothing in ["", "^", "=", "^=", " , "] {
            assert_eq!(hints("NCCL_IB_HCA", nothing), Hints::default(), "{nothing:?}");
        }
    }

    #[test]
    fn an_index_for_nccl_is_taken_if_it_is_one() {
        assert_eq!(hints("NCCL_IB_GID_INDEX", "3").gid_index(), Some(3));
        for none in ["-1", "", "x", "256"] {
            assert_eq!(hints("NCCL_IB_GID_INDEX", none).gid_index(), None, "{none:?}");
        }
    }

    #[test]
    fn what_a_plugin_gave_is_known_by_its_place_on_the_bus() {
        let variable = "PCIDEVICE_NVIDIA_COM_RAIL0";
        let given = hints(variable, "0000:3b:02.1,0000:3b:02.2");
        assert_eq!(given.given(Some("0000:3b:02.2")), Some(variable));
        assert_eq!(given.given(Some("0000:3b:02.3")), None);
        assert_eq!(given.given(None), None, "a software device is on no bus");
        let told = hints("PCIDEVICE_NVIDIA_COM_RAIL0_INFO", "{\"0000:3b:02.1\":{\"x\":1}}");
        assert_eq!(told, Hints::default(), "not a list of addresses");
    }
}
