//! RDMA as the configuration allows it: whether it is offered, from which ports, and the log lines
//! about that at the start. Memory of one client is in `registrations`.

use crate::rdma::devices::Devices;
use crate::rdma::pin_budget::PinBudget;
use std::net::IpAddr;
use std::sync::Arc;
use verbatim_fabric::FabricError;
use verbatim_fabric::verbs::{self, DomainLimits, FileWindows, Options, Place, Wish};

/// The configuration of RDMA.
#[derive(Clone, Default)]
pub struct Rdma {
    /// Whether clients may use it at all.
    pub enable: bool,
    /// The configured device, port and address. `wish()` adds the open devices.
    pub wish: Wish,
    /// Limits of one client.
    pub limits: DomainLimits,
    /// Options of links.
    pub options: Options,
    /// Queue pairs that one client may have.
    pub qps_max: u16,
    /// Windows of one client that may be copies of files.
    pub copied_windows_max: usize,
    /// Bytes of upload slots that one client may have.
    pub upload_bytes_max: u64,
    /// Whether clients may write directly into temporary files.
    pub write_into_files: bool,
    /// The pin budget of all clients.
    pub pins: Option<Arc<PinBudget>>,
    /// The open devices.
    pub devices: Arc<Devices>,
}

impl Rdma {
    /// Whether the configuration lets links start at this port.
    pub fn may_use(&self, device: &str, port: u8) -> bool {
        let Wish { device: named, port: numbered, .. } = &self.wish;
        self.enable
            && named.as_ref().is_none_or(|it| it == device)
            && numbered.is_none_or(|it| it == port)
    }

    /// The ports for links of a client that reached the server at this address, the best first.
    pub fn places(&self, local: Option<IpAddr>) -> Result<Vec<Place>, FabricError> {
        if !self.enable {
            let hint = "set rdma.enable in the server's configuration";
            return Err(FabricError::device("no RDMA", "it is switched off", hint));
        }
        verbs::find_places(&Wish { local: self.wish.local.or(local), ..self.wish() })
    }

    /// The configured device, port and address, with the open devices.
    pub fn wish(&self) -> Wish {
        Wish { open: self.devices.names(), ..self.wish.clone() }
    }

    /// The pin budget; an error where the server may pin nothing.
    pub fn pins(&self) -> Result<&Arc<PinBudget>, FabricError> {
        self.pins.as_ref().ok_or_else(|| FabricError::Limit("the server may pin nothing".into()))
    }

    /// Why RDMA is not offered, if it is not.
    pub fn unavailable(&self) -> Option<RdmaUnavailable> {
        let error = self.places(None).err()?;
        let hint = error.hint().map(str::to_owned);
        Some(RdmaUnavailable { disabled: !self.enable, text: error.to_string(), hint })
    }

    /// The most that all sessions together may pin.
    pub fn pinned_bytes_max(&self) -> u64 {
        self.pins.as_ref().map_or(0, |pins| pins.budget())
    }

    /// Logs which ports are offered, and how files of each folder are registered.
    pub fn announce<'a>(&self, folders: impl Iterator<Item = &'a std::path::Path>) {
        let opened = self.places(None).and_then(|places| {
            let context = self.devices.context(&places[0].device)?;
            Ok((places, context))
        });
        let (places, context) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let hint = error.hint().unwrap_or_default();
                return tracing::info!(%error, hint, "data moves over TCP");
            }
        };
        let pin_budget_mb = self.pins.as_ref().map_or(0, |pins| pins.budget() >> 20);
        // Slots use huge pages while some are free.
        let huge_pages_free = verbatim_fabric::memory::huge_pages_free().unwrap_or(0);
        for Place { device, port, .. } in places {
            tracing::info!(device, port, pin_budget_mb, huge_pages_free, "RDMA is offered");
        }
        for folder in folders {
            let path = folder.display();
            match verbs::probe(&context, folder) {
                FileWindows::Mapped => tracing::info!(%path, "files are registered as they are"),
                FileWindows::Staged { reason } => {
                    tracing::warn!(%path, %reason, "files are read into registered slots");
                }
            }
        }
    }
}

/// Why RDMA is not offered, and the next step.
#[derive(Clone, Debug)]
pub struct RdmaUnavailable {
    /// Whether the configuration disables it.
    pub disabled: bool,
    /// The reason.
    pub text: String,
    /// The next step, where one is known.
    pub hint: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disabled_rdma_is_reported_as_switched_off() {
        let error = Rdma::default().places(None).expect_err("off");
        assert!(error.to_string().contains("switched off"), "{error}");
        assert!(error.hint().expect("a hint").contains("rdma.enable"));
    }
}
