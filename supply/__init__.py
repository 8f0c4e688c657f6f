"""The supply chain: what ships with Affidavit, under which licences, as a CycloneDX bill of materials in the wheel."""
